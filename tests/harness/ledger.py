"""What ran: a ledger that task bodies write and the test reads.

An append-only file and one file lock a run. Both are the kernel's, so they outlive the server under test,
survive SIGKILL of the writer, and need no clock: a lock is free the moment its holder is dead.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.harness.waiting import INTERVAL, wait_until

MAX_AT_ONCE = 256


@dataclass(frozen=True)
class Run:
    """One execution of a task body.

    Attributes:
        slot: the lowest number that no living run of the same key held when this one started; so a key of
            which at most N ever ran at once has seen the slots 0 to N - 1.
        started, ended: seconds of the machine's monotonic clock; ``ended`` is ``None`` while it runs, and
            for ever if its process was killed.
        outcome: ``"ok"``, or the name of the exception that left the body.
        attempt: 0, or how many retries came before.
    """

    task: str
    key: str
    task_id: str
    pid: int
    slot: int
    attempt: int
    started: float
    ended: float | None = None
    outcome: str | None = None


class Ledger:
    """A folder. Give the same folder to the processes that write and to the test that reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "events.jsonl"
        self._file.touch()

    @contextmanager
    def run(self, task: str, key: object, task_id: str, attempt: int = 0) -> Iterator[None]:
        """Wraps a task body: writes its start, then its end, and holds a slot of its key meanwhile."""
        slot, lock = self._take_slot(str(key))
        run = f"{os.getpid()}-{time.monotonic_ns()}-{slot}"
        outcome = "ok"
        try:
            self._append("start", key, run=run, task=task, task_id=task_id, slot=slot, attempt=attempt)
            yield
        except BaseException as error:
            outcome = type(error).__name__
            raise
        finally:
            self._append("end", key, run=run, outcome=outcome)
            os.close(lock)

    def note(self, kind: str, key: object, **data: Any) -> None:
        """Writes a line of the test's own. Data must be JSON."""
        self._append(kind, key, **data)

    def notes(self, kind: str, key: object = None) -> list[dict[str, Any]]:
        """Lines of one kind, oldest first: what was noted, with ``key``, ``pid`` and ``at``."""
        return [e for e in self._events() if e["kind"] == kind and (key is None or str(key) == e["key"])]

    def runs(self, key: object = None, *, task: str | None = None) -> list[Run]:
        """Task bodies that have started, in that order."""
        ends = {event["run"]: event for event in self.notes("end")}
        runs = []
        for start in self.notes("start", key):
            end = ends.get(start["run"], {})
            fields = {name: start[name] for name in ("task", "key", "task_id", "pid", "slot", "attempt")}
            runs.append(Run(**fields, started=start["at"], ended=end.get("at"), outcome=end.get("outcome")))
        return [run for run in runs if task in (None, run.task)]

    def ids(self, key: object = None) -> list[str]:
        return [run.task_id for run in self.runs(key)]

    def overlaps(self, key: object = None) -> list[Run]:
        """Runs that started while another one of their key ran, in a living process."""
        return [run for run in self.runs(key) if run.slot > 0]

    def peak(self, key: object) -> int:
        """The most bodies of one key that ever ran at once."""
        return max((run.slot + 1 for run in self.runs(key)), default=0)

    def wait_for(self, n: int, key: object = None, *, ended: bool = True, timeout: float = 30.0) -> list[Run]:
        """The runs, once ``n`` of them or more have ended, or only started if ``ended=False``."""

        def found() -> list[Run]:
            return [run for run in self.runs(key) if run.ended is not None or not ended]

        what = f"{n} runs of {'any key' if key is None else key} {'ended' if ended else 'started'}"
        wait_until(lambda: len(found()) >= n, timeout, lambda: f"{what}; there is:\n{self}")
        return found()

    def open_gate(self, gate: str) -> None:
        """Lets go all who wait at the gate, now and later."""
        (self.folder / f"gate-{quote(gate, safe='')}").touch()

    def wait_gate(self, gate: str, timeout: float = 60.0, interval: float = INTERVAL) -> None:
        is_open = (self.folder / f"gate-{quote(gate, safe='')}").exists
        wait_until(is_open, timeout, f"gate {gate!r} was not opened", interval)

    def __str__(self) -> str:
        return self._file.read_text()

    def _take_slot(self, key: str) -> tuple[int, int]:
        for slot in range(MAX_AT_ONCE):
            path = self.folder / f"slot-{quote(key, safe='')[:200]}-{slot}"
            lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
            else:
                return slot, lock
        raise RuntimeError(f"more than {MAX_AT_ONCE} bodies of {key} run at once")

    def _append(self, kind: str, key: object, **data: Any) -> None:
        event = {"kind": kind, "key": str(key), "pid": os.getpid(), "at": time.monotonic(), **data}
        descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, json.dumps(event).encode() + b"\n")
        finally:
            os.close(descriptor)

    def _events(self) -> list[dict[str, Any]]:
        whole, _, _being_written = self._file.read_bytes().rpartition(b"\n")
        return [json.loads(line) for line in whole.splitlines()]
