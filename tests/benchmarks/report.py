"""The page that the rows make: docs/benchmarks.md."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec

from tests.benchmarks.contenders import INSTALLED, LIBRARIES
from tests.benchmarks.figures import Figure
from tests.harness.processes import ROOT

PAGE = ROOT / "docs" / "benchmarks.md"
NOTES = ROOT / "tests" / "benchmarks" / "notes.md"
MET = {True: "yes", False: "**no**", None: ""}
TITLES = {
    "publish": "A publish",
    "names": "A name among 10,000 rules",
    "keys": "A key",
    "claim": "A claim",
    "round-trips": "Round trips",
    "worker": "Tasks through a worker",
    "heartbeat": "The heartbeat",
    "memory": "Memory of a claim",
    "million": "Beside a million others",
    "contention": "500 callers at once",
    "footprint": "What a publisher carries",
}


def table(figures: Sequence[Figure]) -> str:
    """Figures as Markdown."""
    head = ["what", "found", "middle half", "to reach", "reached", "in absolute terms"]
    rows = [[f.what, f.value, f.spread, f.goal, MET[f.met], f.detail] for f in figures]
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(f"| {' | '.join(map(str.ljust, line, widths))} |" for line in lines)


def page(found: Mapping[str, Sequence[Figure]], rounds: int, server: str) -> str:
    """All rows, with what they were measured on and what is to be said of them."""
    figures = [figure for some in found.values() for figure in some]
    goals = [figure.met for figure in figures if figure.met is not None]
    parts = [
        "# Benchmarks",
        '`make bench` writes this page; `make bench ARGS="publish keys"` prints some of its rows, '
        "`make bench ARGS=--help` says more. "
        "Each contender has a process of its own, and they are timed in turn, A B A B, in one run, on one "
        f"server. A ratio is the median of the ratios of at least {rounds} rounds; the middle half of them "
        "lies in the range beside it. Nothing in the test suite asserts a time.",
        f"{sum(goals)} of {len(goals)} goals are reached. Measured {_place(server)}.",
        *(f"## {TITLES[name]}\n\n{_narrow(some)}" for name, some in found.items()),
        NOTES.read_text(encoding="utf-8").strip(),
    ]
    return "\n\n".join(parts) + "\n"


def _narrow(figures: Sequence[Figure]) -> str:
    head = (
        "| what | found | middle half | to reach | reached | in absolute terms |\n|---|---|---|---|---|---|"
    )
    rows = [f"| {f.what} | {f.value} | {f.spread} | {f.goal} | {MET[f.met]} | {f.detail} |" for f in figures]
    return "\n".join([head, *rows])


def _place(server: str) -> str:
    with_ = [f"{name} {version(name)}" for name in ("celery", "kombu", "redis", *INSTALLED)]
    hiredis = f"with hiredis {version('hiredis')}" if find_spec("hiredis") else "without hiredis"
    missing = [name for name in LIBRARIES if name not in INSTALLED]
    return (
        f"on {os.cpu_count()} cores ({platform.machine()}), load {os.getloadavg()[0]:.1f} at the end, "
        f"CPython {platform.python_version()}, Valkey {server}, {', '.join(with_)}, {hiredis}"
        + (f"; not installed: {', '.join(missing)}" if missing else "")
    )
