"""Ends what a test run started, when the run itself can no longer do so.

Run as a program, it reads lines from its standard input: ``group PID`` or ``folder PATH`` puts a process
group or a folder on the list, ``ended PID`` or ``removed PATH`` takes it off. When the input ends, or its
parent is gone, it kills each group with SIGKILL, children that hang in C included, and removes each folder.

A parent-death signal would not do: it reaches one process, not its children, and is sent when the thread ends
that started the process.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

ORPHAN_CHECK_SECONDS = 0.5


class Reaper:
    """The run's side. One process a test run (an xdist worker is a run of its own)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is for the run, not for the one that tidies up after it
        )

    def watch_group(self, pid: int) -> None:
        self._say(f"group {pid}")

    def forget_group(self, pid: int) -> None:
        self._say(f"ended {pid}")

    def watch_folder(self, path: Path) -> None:
        self._say(f"folder {path}")

    def forget_folder(self, path: Path) -> None:
        self._say(f"removed {path}")

    def close(self) -> None:
        """Ends what is still on the list, and returns when that is done."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()


def main(parent: int) -> None:
    groups: set[int] = set()
    folders: set[str] = set()
    lists = {
        "group": lambda value: groups.add(int(value)),
        "ended": lambda value: groups.discard(int(value)),
        "folder": folders.add,
        "removed": folders.discard,
    }
    unread = b""
    while os.getppid() == parent:
        if not select.select([0], [], [], ORPHAN_CHECK_SECONDS)[0]:
            continue
        if not (data := os.read(0, 65536)):
            break
        *lines, unread = (unread + data).split(b"\n")
        for line in lines:
            verb, value = line.decode().split(" ", 1)
            lists[verb](value)
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
