"""Workers, beat and plain programs as real processes, each on the app that a test has made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import psutil

from tests.harness.processes import ROOT, Process, ProcessFailed, environment
from tests.harness.reaper import Reaper


class Deployment(Protocol):
    """What a process must be told to work on the same app as the test."""

    module: str
    queue: str

    @property
    def env(self) -> Mapping[str, str]: ...


class WorkerProcess(Process):
    """``celery worker``.

    Attributes:
        node: its name, ``name@host``, as Celery tells it.
    """

    node: str

    def wait_ready(self) -> None:
        self.wait_for_log(f"{self.node} ready.")

    def child_pids(self) -> list[int]:
        """The processes of its prefork pool that live, oldest first."""
        children = [
            child for child in psutil.Process(self.pid).children() if child.status() != psutil.STATUS_ZOMBIE
        ]
        return [child.pid for child in sorted(children, key=lambda child: child.create_time())]

    def kill_child(self, pid: int) -> None:
        """SIGKILL to one process of the pool, as the kernel does when memory runs out."""
        if pid not in self.child_pids():
            raise ProcessFailed(f"{pid} is no child of {self.name}, which has {self.child_pids()}")
        os.kill(pid, signal.SIGKILL)

    def stop(self, timeout: float = 30.0) -> int:
        """Warm shutdown: what runs is finished, what is reserved goes back. Its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout)

    def cold_stop(self, timeout: float = 30.0) -> int:
        """Cold shutdown, after a soft one if ``worker_soft_shutdown_timeout`` says so. Its exit code."""
        self.signal(signal.SIGQUIT)
        return self.wait(timeout)


class PythonProcess(Process):
    """A program on the app, as a web process or a script would be."""

    @property
    def output(self) -> str:
        """All it printed, once it has ended well."""
        if code := self.wait(60):
            raise ProcessFailed(f"{self.name} ended with {code}")
        return self.log


class Workers:
    """Starts processes on apps, and ends them all. The fixture ``workers``."""

    def __init__(self, folder: Path, reaper: Reaper) -> None:
        self._folder = folder
        self._reaper = reaper
        self._started: list[Process] = []

    def __call__(
        self,
        app: Deployment,
        *options: str,
        pool: str = "prefork",
        concurrency: int = 2,
        env: Mapping[str, str] | None = None,
        ready: bool = True,
    ) -> WorkerProcess:
        """A worker on the app's queue.

        Args:
            options: more words for its command line, ``"--time-limit=2"``.
            pool: ``prefork``, ``threads``, ``solo``, ``gevent`` or ``eventlet``.
            concurrency: how many tasks it runs at once.
            env: more environment variables.
            ready: returns when it takes tasks; ``False`` for one that is to refuse to start.
        """
        name = f"worker{len(self._started)}-{app.queue}"
        command = [
            *_celery(app),
            "worker",
            f"--pool={pool}",
            f"--concurrency={concurrency}",
            f"--hostname={name}@test",
            f"--queues={app.queue}",
            "--loglevel=INFO",
            "--without-gossip",
            "--without-mingle",
            *options,
        ]
        worker = self._start(WorkerProcess, command, name, app, env)
        worker.node = f"{name}@test"
        if ready:
            worker.wait_ready()
        return worker

    def beat(self, app: Deployment, *options: str, env: Mapping[str, str] | None = None) -> Process:
        """``celery beat`` on the app's ``beat_schedule``, its own schedule file new and empty."""
        name = f"beat{len(self._started)}"
        command = [*_celery(app), "beat", "--loglevel=INFO", f"--schedule={self._folder / name}", *options]
        beat = self._start(Process, command, name, app, env)
        beat.wait_for_log("beat: Starting...")
        return beat

    def python(
        self, app: Deployment, source: str, *args: str, env: Mapping[str, str] | None = None
    ) -> PythonProcess:
        """A program of these lines, dedented; it has ``app``, ``tasks`` and ``ledger``."""
        name = f"python{len(self._started)}"
        program = f"from {app.module} import app, ledger, tasks\n{textwrap.dedent(source)}"
        return self._start(PythonProcess, [sys.executable, "-c", program, *args], name, app, env)

    def celery(
        self, app: Deployment, *words: str, env: Mapping[str, str] | None = None, typed: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """``celery -A app WORDS``, once it has ended: ``.stdout``, ``.stderr``, ``.returncode``."""
        environ = {**os.environ, **environment(), **app.env, **(env or {})}
        command = [*_celery(app), *words]
        return subprocess.run(
            command, cwd=ROOT, env=environ, input=typed, capture_output=True, text=True, timeout=90
        )

    def end(self) -> None:
        """Kills what still lives."""
        for process in self._started:
            process.kill()

    def logs(self) -> list[tuple[str, str]]:
        return [(process.name, process.log) for process in self._started]

    def _start(
        self, kind: type[Any], command: list[str], name: str, app: Deployment, env: Mapping[str, str] | None
    ) -> Any:
        path = self._folder / f"{name}.log"
        process = kind(command, name=name, reaper=self._reaper, log_path=path, env={**app.env, **(env or {})})
        self._started.append(process)
        return process


def _celery(app: Deployment) -> list[str]:
    return [sys.executable, "-m", "celery", "--app", app.module, "--no-color"]
