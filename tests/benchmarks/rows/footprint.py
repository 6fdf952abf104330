"""What the extension adds to a publisher: the time of its import, and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

from tests.benchmarks.figures import Figure, Setting, ratio
from tests.harness.processes import ROOT

PROGRAM = """
import time, json
started = time.perf_counter()
import psutil, redis
from celery import Celery
app = Celery("proj", broker="redis://localhost/0", backend="redis://localhost/1")
{publisher}
process = psutil.Process()
base = time.perf_counter() - started, process.memory_full_info().uss
started = time.perf_counter()
from celery_dedupe import Dedupe
Dedupe(app, url="redis://localhost/2", rules={{"reports.*": "queue_and_run"}}).init_app().check()
print(json.dumps([*base, time.perf_counter() - started, process.memory_full_info().uss - base[1]]))
"""
IMPORTED = ""
READY = "app.backend, app.amqp.router, app.amqp.send_task_message, app.producer_pool, app.finalize()"


def row(setting: Setting) -> list[Figure]:
    figures = []
    for title, publisher in (
        ("that has imported celery and redis and made its app", IMPORTED),
        ("that is ready to publish", READY),
    ):
        with tempfile.TemporaryDirectory() as compiled:
            _measure(publisher, compiled)  # Compiled before it is timed, as an installed package is.
            found = [_measure(publisher, compiled) for _ in range(setting.rounds * 2)]
        base_time, base_memory, time_added, memory_added = map(list, zip(*found, strict=True))
        goal = 0.1 if publisher else None
        figures += [
            ratio(f"import time added to a publisher {title}", time_added, base_time, at_most=goal),
            ratio(f"memory added to a publisher {title}", memory_added, base_memory, at_most=goal, unit=_mb),
        ]
    return figures


def _measure(publisher: str, compiled: str) -> list[float]:
    program = PROGRAM.format(publisher=publisher)
    env = {**os.environ, "PYTHONPYCACHEPREFIX": compiled, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT, env=env, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return list(json.loads(done.stdout))


def _mb(size: float) -> str:
    return f"{size / 1e6:.2f} MB"
