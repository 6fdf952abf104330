"""Operating system processes that are always ended."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import psutil

from tests.harness.reaper import Reaper
from tests.harness.waiting import wait_until

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
RUN_MARK = "DEDUPE_TEST_RUN"


class ProcessFailed(AssertionError):
    """A process ended, or did not do what was waited for. A failed test shows the logs of its workers."""


class Process:
    """A process in a group of its own, whose output goes to a file.

    Attributes:
        name: what the log is called in a report.
        log_path: the file with its output, of both streams.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        reaper: Reaper,
        log_path: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log_path = log_path
        self._reaper = reaper
        with log_path.open("ab") as log:
            self._popen = subprocess.Popen(
                list(command),
                cwd=ROOT,
                env={**os.environ, **environment(), **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_hear_interrupts,
            )
        reaper.watch_group(self.pid)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    @property
    def exit_code(self) -> int | None:
        """What it exited with; minus the signal that killed it; ``None`` while it lives."""
        return self._popen.poll()

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def wait(self, timeout: float = 30.0) -> int:
        """Its exit code, once it has ended by itself."""
        with suppress(subprocess.TimeoutExpired):
            return self._popen.wait(timeout)
        raise ProcessFailed(f"{self.name} still runs after {timeout} s")

    def wait_for(self, condition: Callable[[], T], what: str, timeout: float = 30.0) -> T:
        """Waits for the condition's value, and fails at once if the process ends before."""

        def met() -> T:
            alive = self.alive
            value = condition()
            if not (alive or value):
                raise ProcessFailed(f"{self.name} ended with {self.exit_code} before: {what}")
            return value

        return wait_until(met, timeout, f"{self.name}: {what}")

    def wait_for_log(self, text: str, timeout: float = 30.0) -> None:
        self.wait_for(lambda: text in self.log, f"{text!r} in its log", timeout)

    def signal(self, number: int) -> None:
        """To the process alone, not to its children."""
        self._popen.send_signal(number)

    def pause(self) -> None:
        """Stops it and all its children where they are, as a host that is gone; sockets stay open."""
        os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to it and all its children, at once. Harmless when it has ended."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait(10)
        wait_until(lambda: not group_members(self.pid), 10, f"process group {self.pid} outlives SIGKILL")
        self._reaper.forget_group(self.pid)


def environment() -> dict[str, str]:
    """What every process of a run gets, and by which its processes can be told from all others."""
    return {
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        RUN_MARK: os.environ.get(RUN_MARK, str(os.getpid())),
    }


def group_members(group: int) -> list[int]:
    """Pids of the living processes of a group."""
    members = []
    for pid in psutil.pids():
        with suppress(ProcessLookupError):
            if os.getpgid(pid) == group and is_alive(pid):
                members.append(pid)
    return members


def is_alive(pid: int) -> bool:
    """Whether the process can still do anything; a dead one that nobody has reaped cannot."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def processes_of_run(mark: str) -> list[str]:
    """Command lines of the living processes that were started by the run with this mark."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(RUN_MARK) == mark and is_alive(process.pid):
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
    return found


def _hear_interrupts() -> None:
    # Where the tests run in a shell's background they ignore SIGINT, which each process inherits.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
