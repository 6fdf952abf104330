"""What a story is played on: a server, a worker, and this process, which calls the tasks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from celery.signals import after_task_publish

FOLDER = Path(__file__).parent
WORKER = (
    *(sys.executable, "-m", "celery", "--app=tasks", "--no-color", "worker", "--pool=prefork"),
    *("--concurrency=2", "--loglevel=INFO", "--without-gossip", "--without-mingle"),
)
# The worker does not read its input: a shell does, and takes the whole process group with it.
UNTIL_INPUT_ENDS = ("sh", "-c", '{ "$@"; kill -KILL 0; } & read -r line; kill -KILL 0', "sh")


@dataclass(frozen=True)
class Answer:
    """What a caller got: whether a message was sent, what was returned, what was raised."""

    sent: bool
    returned: Any = None
    raised: Exception | None = None


class Stage:
    """The processes, and what came true so far.

    ``patience``: seconds for what is claimed to become true.
    """

    def __init__(self, folder: Path, code: Path, ends: ExitStack, patience: float) -> None:
        self._log, self._code, self._ends = folder / "worker.log", code, ends
        self.patience = patience
        self.failed = 0
        self._sent = 0
        after_task_publish.connect(self._note)

    def claim(self, text: str, holds: object, otherwise: object = "it is not so") -> None:
        """Print whether it is so, and what there is instead."""
        print(f"  ok      {text}" if holds else f"  FAILED  {text}: {otherwise}", flush=True)
        self.failed += not holds

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Answer:
        """Call what sends a task, and see what comes of it."""
        before = self._sent
        try:
            returned = function(*args, **options)
        except Exception as error:  # noqa: BLE001 - each library has its own
            return Answer(self._sent > before, raised=error)
        return Answer(self._sent > before, returned)

    def becomes(self, condition: Callable[[], Any], patience: float | None = None) -> bool:
        """Whether the condition becomes true."""
        deadline = time.monotonic() + (self.patience if patience is None else patience)
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)  # between two looks
        return True

    def start_worker(self) -> None:
        """Start a worker, and return when it takes tasks."""
        with self._log.open("wb") as file:
            worker = _start(self._ends, *UNTIL_INPUT_ENDS, *WORKER, cwd=self._code, stdout=file, stderr=file)
        if not self.becomes(lambda: " ready." in self.log or worker.poll() is not None, 60) or worker.poll():
            sys.exit(f"the worker does not start:\n{self.log}")

    def _note(self, **_: Any) -> None:
        self._sent += 1

    @property
    def log(self) -> str:
        """The worker's."""
        return self._log.read_text()


@contextmanager
def open_stage(code: Path, patience: float) -> Iterator[Stage]:
    """A server for the code in this folder; everything ended in the end."""
    with ExitStack() as ends:
        temporary = TemporaryDirectory(prefix="migrating-", ignore_cleanup_errors=True)
        folder = Path(ends.enter_context(temporary))
        os.environ["TMPDIR"] = str(folder)  # a worker that is killed leaves its own folder behind
        command = (sys.executable, str(FOLDER / "server.py"), str(folder / "valkey"))
        server = _start(ends, *command, stdout=subprocess.PIPE)
        assert server.stdout is not None
        os.environ["MIGRATING_REDIS"] = f"redis://127.0.0.1:{int(server.stdout.readline())}"
        os.environ["PYTHONPATH"] = str(FOLDER)
        yield Stage(folder, code, ends, patience)


def _start(ends: ExitStack, *command: str, **options: Any) -> subprocess.Popen[bytes]:
    """A process that ends with its standard input: in the end, and whatever ends this one."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, **options)

    def end() -> None:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()

    ends.callback(end)
    return process
