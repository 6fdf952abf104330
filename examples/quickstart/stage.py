"""What the story is played on: a server, a worker, five browsers, each a process of its own.

Each of them ends when its standard input closes, so none outlives this process, whatever ends that.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from legacy import database

FOLDER = Path(__file__).parent
PEOPLE = ("Ann", "Ben", "Cay", "Dan", "Eve")
WORKER = (
    *("-m", "celery", "--app=legacy.app", "--no-color", "worker", "--pool=prefork", "--concurrency=2"),
    *("--loglevel=INFO", "--hostname=worker@quickstart", "--without-gossip", "--without-mingle"),
)
# The worker does not read its input: a shell does, and takes the whole process group with it.
UNTIL_INPUT_ENDS = ("sh", "-c", '{ "$@"; kill -KILL 0; } & read -r line; kill -KILL 0', "sh")


@dataclass(frozen=True)
class Call:
    """One call of a task, as the browser that made it tells. Times are of the machine's monotonic clock.

    ``at`` and ``until`` are just before and after it; ``duplicate_of`` is the task that a dropped call got.
    """

    who: str
    at: float
    until: float
    task_id: str
    duplicate_of: str | None
    state: str | None


@dataclass(frozen=True)
class Run:
    """One run of a task's body, from the code base's own trail; ``ended`` is ``None`` if it did not end."""

    task_id: str
    started: float
    ended: float | None


class Actor:
    """A process, in a group of its own so that a Ctrl-C is not for it, with its output in a log file."""

    def __init__(self, command: Sequence[str], log: Path, *, talks: bool = True) -> None:
        self.log = log
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                cwd=FOLDER,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if talks else file,
                stderr=file,
                text=True,
                start_new_session=True,
            )

    def __enter__(self) -> Actor:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """SIGKILL to it and its children, as when the power fails. Harmless once it has ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def hear(self) -> Any:
        """The next line of its output, which is JSON."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{self.log.stem} ended unasked:\n{self.log.read_text()}")
        return json.loads(line)

    def tell(self, **order: Any) -> None:
        """Give a browser an order."""
        assert self._process.stdin is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)

    def wait_ready(self) -> None:
        """Return once a worker takes tasks."""
        ended = self._process.poll
        wait_until(lambda: "ready." in self.log.read_text() or ended() is not None, "the worker is not ready")
        if ended() is not None:
            sys.exit(f"the worker does not start:\n{self.log.read_text()}")


class Stage:
    """The processes, ready to play."""

    def __init__(self, folder: Path, ends: ExitStack) -> None:
        self._folder, self._ends = folder, ends
        server = self._start("server", sys.executable, "server.py", str(folder / "valkey.sock"))
        server.hear()
        self.start_worker()
        self._browsers = {name: self._start(name, sys.executable, "browser.py") for name in PEOPLE}
        for browser in self._browsers.values():
            browser.hear()
        self.worker.wait_ready()

    def call(self, who: Sequence[str], task: str, *args: Any, times: int = 1) -> list[Call]:
        """Have people call a task, all at once, each of them ``times`` times in a row."""
        for name in who:
            self._browsers[name].tell(call=task, args=args, times=times)
        answers = [(name, told) for name in who for told in self._browsers[name].hear()]
        return [_call(name, told) for name, told in answers]

    def collect(self) -> list[Any]:
        """The results that people have got for all their calls so far."""
        for browser in self._browsers.values():
            browser.tell(collect=30)
        return [result for browser in self._browsers.values() for result in browser.hear()]

    def runs(self, task: str) -> list[Run]:
        """The runs of a task, in the order of their start."""
        rows = database.execute(
            "select task_id, started, ended from runs where task = ? order by started", task
        )
        return [Run(*row) for row in rows]

    def wait_for(self, task: str, calls: Sequence[Call]) -> list[Run]:
        """The runs of a task once each of the calls that were not dropped has one that has ended."""
        sent = {call.task_id for call in calls if not call.duplicate_of}
        wait_until(
            lambda: sent <= {run.task_id for run in self.runs(task) if run.ended},
            f"not every call of {task} that was sent has had its run",
        )
        return self.runs(task)

    def wait_running(self, task: str) -> None:
        """Return once a run of the task has started."""
        wait_until(lambda: self.runs(task), f"no run of {task} has started")

    @contextmanager
    def held_up(self, task: str) -> Iterator[None]:
        """In this block no run of the task ends."""
        database.execute("insert into held values (?)", task)
        yield
        database.execute("delete from held where task = ?", task)

    def start_worker(self) -> None:
        """Start a worker, and do not wait for it."""
        self.worker = self._start("worker", *UNTIL_INPUT_ENDS, sys.executable, *WORKER, talks=False)

    def _start(self, name: str, *command: str, talks: bool = True) -> Actor:
        return self._ends.enter_context(Actor(command, self._folder / f"{name}.log", talks=talks))


@contextmanager
def open_stage() -> Iterator[Stage]:
    """Everything started, and everything ended."""
    with ExitStack() as ends:
        temporary = TemporaryDirectory(prefix="quickstart-", ignore_cleanup_errors=True)
        folder = Path(ends.enter_context(temporary))
        os.environ["TMPDIR"] = str(folder)  # A worker that is killed leaves its own folder behind.
        os.environ["LEGACY_REDIS"] = f"redis+socket://{folder}/valkey.sock"
        os.environ["LEGACY_DATABASE"] = str(folder / "legacy.sqlite")
        database.create()
        try:
            yield Stage(folder, ends)
        except TimeoutError as error:
            sys.exit(f"{error}; the log of the worker:\n{(folder / 'worker.log').read_text()}")


def wait_until(condition: Callable[[], Any], otherwise: str, timeout: float = 30.0) -> None:
    """Return when the condition is true, or raise ``TimeoutError`` with what is the case instead."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {timeout:.0f} s {otherwise}")
        time.sleep(0.01)


def _call(who: str, told: dict[str, Any]) -> Call:
    duplicate_of = told["id"] if told["duplicate"] else None
    return Call(who, told["at"], told["until"], told["id"], duplicate_of, told["state"])
