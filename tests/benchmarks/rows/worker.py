"""How many tasks that do nothing a prefork worker runs a second, with the default lock and without."""

from __future__ import annotations

from contextlib import ExitStack, closing

from tests.benchmarks.contenders import INSTALLED
from tests.benchmarks.figures import Figure, Setting, ratio
from tests.benchmarks.workers import BatchWorker

BATCH = 500


def row(setting: Setting) -> list[Figure]:
    batch = setting.of(BATCH)
    with setting.server() as server, ExitStack() as stack:
        workers = {
            kind: stack.enter_context(closing(BatchWorker(setting, server, kind)))
            for kind in ("plain", "ours", *INSTALLED)
        }
        found: dict[str, list[float]] = {kind: [] for kind in workers}
        for _ in range(setting.rounds):
            for kind, worker in workers.items():
                worker.fill(batch)
                found[kind].append(batch / worker.drain())
    return [
        ratio(
            f"{name}: tasks that do nothing a second, prefork with 2 processes, against no extension",
            found[kind], found["plain"], at_least=0.85 if kind == "ours" else None, unit=_rate,
        )
        for kind, name in (("ours", "this project"), *((name, name) for name in INSTALLED))
    ]  # fmt: skip


def _rate(tasks: float) -> str:
    return f"{tasks:,.0f}/s"
