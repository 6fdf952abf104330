"""A worker that is given tasks in batches, each at once, and timed from the first to the last of it."""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import count
from typing import Any

from tests.benchmarks.contenders import LAST, TASK, make_app
from tests.benchmarks.figures import Setting
from tests.benchmarks.lanes import Lane, Work
from tests.harness.processes import Process
from tests.harness.servers import BROKER, ValkeyServer

LONGEST = 120  # seconds that a batch may take


class BatchWorker:
    """``celery worker`` of a contender, and a process that publishes to it.

    Arguments:
        app: what else ``make_app`` takes.
    """

    def __init__(
        self, setting: Setting, server: ValkeyServer, kind: str, *, pool: str = "prefork", **app: Any
    ) -> None:
        arguments = {"kind": kind, "server": server.address, **app}
        self._kind, self._work = kind, f"{kind}.work"
        self._client = server.client(BROKER)
        self._publisher = Lane(make_publish, arguments)
        self._last = make_app("plain", server.address, queue=kind).tasks[LAST]
        self._process = Process(
            [sys.executable, "-m", "celery", "-A", "tests.benchmarks.worker_app", "worker", f"--pool={pool}",
             "--concurrency=2", "--without-gossip", "--without-mingle", "--without-heartbeat",
             "--loglevel=WARNING", "--hostname", f"{kind}@bench"],
            name=f"worker of {kind}",
            reaper=setting.reaper,
            log_path=server.folder / f"{kind}.log",
            env={"BENCH_APP": json.dumps({**arguments, "queue": self._work})},
        )  # fmt: skip
        self.drain()

    def fill(self, calls: int) -> None:
        """Publish so many calls, no two of them alike, to where the worker does not look."""
        self._publisher.time(calls)

    def drain(self) -> float:
        """Seconds that the worker takes for what has been published."""
        self._last.delay()
        started = time.perf_counter()
        self._client.rename(self._kind, self._work)
        if not self._client.blpop([f"{LAST}.{self._kind}"], LONGEST):
            raise TimeoutError(f"not within {LONGEST} s:\n{self._process.log}")
        return time.perf_counter() - started

    def close(self) -> None:
        self._publisher.close()
        self._process.kill()


def make_publish(arguments: dict[str, Any]) -> Work:
    task = make_app(**arguments).tasks[TASK]
    return "delay(next(customers), '2026')", {"delay": task.delay, "customers": count(os.getpid() * 10**6)}
