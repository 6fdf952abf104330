"""The code base of ``examples/migrating`` in each step of its way over, with callers and workers of each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis import Redis

from tests.harness.processes import ROOT, environment
from tests.harness.reaper import Reaper
from tests.harness.servers import ValkeyServer
from tests.harness.snippets import snippets
from tests.harness.waiting import wait_until
from tests.harness.workers import WorkerProcess

PAGE = ROOT / "docs" / "migrating.md"
EXAMPLES = ROOT / "examples" / "migrating"
INSTALL = "\nfrom celery_dedupe import Dedupe\n\nDedupe(app).init_app()\n"
CALLER = """
import json, sys
from celery.signals import after_task_publish
import tasks

sent = []
note = lambda **_: sent.append(True)
after_task_publish.connect(note)
for line in sys.stdin:
    sent.clear()
    task, args, options = json.loads(line)
    try:
        getattr(tasks, task).apply_async(args, **options)
    except Exception as error:
        print(repr(error), file=sys.stderr)
    print(json.dumps(bool(sent)), flush=True)
"""


@dataclass(frozen=True)
class Library:
    """One of the libraries that people come from.

    Attributes:
        name: its folder in the examples, which is its name in the package index.
        module: what is imported from it.
        locks: the database of its locks and how their keys begin.
        tasks: those of its tasks under a lock of another kind, or with a key of their own.
        misses: what its own story tells and it does not do.
    """

    name: str
    module: str
    locks: tuple[int, str]
    tasks: Sequence[str] = ("sync_account",)
    misses: Sequence[str] = ()


LIBRARIES = (
    Library("celery-once", "celery_once", (3, "qo_"), ("sync_account", "update_index")),
    Library("celery-singleton", "celery_singleton", (3, "SINGLETONLOCK_")),
    Library(
        "celery-heimdall",
        "celery_heimdall",
        (1, "h-lock:"),
        misses=("unique and rate_limit: who is over the limit runs later",),
    ),
    Library(
        "celery-once-task",
        "celery_once_task",
        (3, "once_task:"),
        ("sync_account", "update_index", "clean_up"),
    ),
)
# What the old library does not do of what is claimed here, as the stories put it, and which of them do not.
MISSED = {
    "a call by position and one by name are the same": {"singleton", "heimdall", "once-task"},
    "a default that is given and one left out are the same": {"once", "singleton", "heimdall", "once-task"},
    "send_task by name meets the lock": {"once", "singleton", "heimdall", "once-task"},
    "a retry runs": {"singleton", "heimdall", "once-task"},
    "the body of a chord with two equal members runs": {"once", "singleton", "heimdall", "once-task"},
    "after a revoke the next call is accepted": {"once", "singleton", "heimdall"},
    "after its process was killed the next call is accepted": {"once", "singleton", "heimdall", "once-task"},
}


def build(library: Library, step: str, folder: Path) -> Path:
    """The code base of a step, made from the example by the edits that ``docs/migrating.md`` tells.

    Steps are ``before``, ``observe``, ``bridge``, ``after``, and the mistake, ``enforce`` with the old base.
    """
    folder.mkdir()
    source = EXAMPLES / library.name / ("after" if step == "after" else "before")
    tasks = (source / "tasks.py").read_text()
    config = (source / "celeryconfig.py").read_text()
    if step in ("observe", "bridge", "enforce"):
        tasks += INSTALL
        rules = (EXAMPLES / library.name / "after" / "celeryconfig.py").read_text()
        config += rules.replace("from __future__ import annotations\n", "")
    observe, _, wait = (snippet.text for snippet in snippets(PAGE) if snippet.language == "python")
    if step == "observe":
        config += observe
    if step == "bridge":
        config += wait.replace(" = ", " |= ")
        tasks = _bridged(tasks, library)
        (folder / "bridge.py").write_text((EXAMPLES / library.name / "bridge.py").read_text())
    (folder / "tasks.py").write_text(tasks)
    (folder / "celeryconfig.py").write_text(config)
    return folder


def _bridged(tasks: str, library: Library) -> str:
    """The tasks with their base from the bridge."""
    (line,) = (line for line in tasks.splitlines() if line.startswith(f"from {library.module} import "))
    base, *rest = line.partition(" import ")[2].split(", ")
    kept = f"\nfrom {library.module} import {', '.join(rest)}" if rest else ""
    return tasks.replace(line, f"from bridge import {base}{kept}")


class Caller:
    """A program of a step, which calls tasks when it is told to."""

    def __init__(self, env: Mapping[str, str], log: Path, reaper: Reaper) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", CALLER],
                env=dict(env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._log, self._reaper = log, reaper
        reaper.watch_group(self._process.pid)

    def call(self, task: str, *args: Any, **options: Any) -> bool:
        """Call a task; whether a message was sent."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([task, args, options]), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, self._log.read_text()
        return bool(json.loads(answer))

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._reaper.forget_group(self._process.pid)


@dataclass
class Rollout:
    """A library's code base, all steps of it on one server; processes start when they are first asked for."""

    library: Library
    server: ValkeyServer
    folder: Path
    reaper: Reaper
    _callers: dict[str, Caller] = field(default_factory=dict)
    _workers: dict[str, WorkerProcess] = field(default_factory=dict)

    def call(self, caller: str, worker: str, task: str, *args: Any) -> bool:
        """Have a program of one step call a task, for a worker of another; whether a message was sent."""
        self.worker(worker)
        if caller not in self._callers:
            log = self.folder / f"caller-{caller}.log"
            self._callers[caller] = Caller(self._env(caller), log, self.reaper)
        return self._callers[caller].call(task, *args, queue=worker)

    def worker(self, step: str) -> WorkerProcess:
        """The worker of a step, which takes what is sent for it and nothing else."""
        if step not in self._workers:
            command = [
                *(sys.executable, "-m", "celery", "--app=tasks", "--no-color", "worker", "--concurrency=2"),
                *("--loglevel=INFO", "--without-gossip", "--without-mingle"),
                *(f"--queues={step}", f"--hostname={step}@test"),
            ]
            log = self.folder / f"worker-{step}.log"
            worker = WorkerProcess(
                command, name=f"worker-{step}", reaper=self.reaper, log_path=log, env=self._env(step)
            )
            worker.node = f"{step}@test"
            worker.wait_ready()
            self._workers[step] = worker
        return self._workers[step]

    def hold(self, what: str) -> None:
        """From now on no run of it ends."""
        self._journal.set(f"held {what}", 1)

    def count(self, what: str) -> int:
        """How many runs of it have ended."""
        return int(self._journal.get(f"done {what}") or 0)

    def let_go(self, what: str) -> None:
        self._journal.delete(f"held {what}")

    def started(self, what: str) -> int:
        return self._journal.llen(f"started {what}")

    def wait_done(self, what: str, runs: int) -> None:
        """Return when so many runs of it have ended."""
        wait_until(
            lambda: int(self._journal.get(f"done {what}") or 0) >= runs,
            60,
            f"{runs} runs of {what} have ended",
        )

    def old_locks(self) -> list[str]:
        """The keys of the old library."""
        database, prefix = self.library.locks
        return sorted(self.server.client(database).keys(f"{prefix}*"))

    def claims(self) -> list[str]:
        """Our keys, but for the counts, which nobody waits for."""
        keys = self.server.client(self.library.locks[0]).keys("dedupe:*")
        return sorted(key for key in keys if not key.startswith("dedupe:stats:"))

    def forget_claims(self) -> None:
        """As if what holds ours were dead and its leases over."""
        self.server.client(self.library.locks[0]).delete(*self.claims())

    def clear(self) -> None:
        """Remove what a test has left in the way of the next one."""
        for key in self._journal.keys("held *"):
            self._journal.delete(key)
        if keys := self.old_locks() + self.claims():
            self.server.client(self.library.locks[0]).delete(*keys)

    def logs(self) -> list[tuple[str, str]]:
        return [(path.name, path.read_text()) for path in sorted(self.folder.glob("*.log"))]

    def end(self) -> None:
        for caller in self._callers.values():
            caller.end()
        for worker in self._workers.values():
            worker.kill()

    @property
    def _journal(self) -> Redis:
        return self.server.client(2)

    def _env(self, step: str) -> dict[str, str]:
        folder = self.folder / step
        if not folder.exists():
            build(self.library, step, folder)
        path = f"{folder}:{EXAMPLES}:{ROOT}"
        server = f"redis://{self.server.host}:{self.server.port}"
        return {**environment(), "PYTHONPATH": path, "MIGRATING_REDIS": server}


@contextmanager
def open_rollout(library: Library, folder: Path, reaper: Reaper) -> Iterator[Rollout]:
    """Everything ended in the end."""
    server = ValkeyServer(reaper)
    server.start()
    rollout = Rollout(library, server, folder, reaper)
    try:
        yield rollout
    finally:
        rollout.end()
        server.close()
