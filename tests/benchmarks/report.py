"""The page that the rows make: docs/benchmarks.md."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import redis

from tests.benchmarks.contenders import INSTALLED
from tests.benchmarks.figures import Figure

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
MET = {True: "yes", False: "**no**", None: ""}


def table(figures: Sequence[Figure]) -> str:
    """Figures as Markdown."""
    head = ["what", "found", "middle half of the rounds", "to reach", "reached", "in absolute terms"]
    rows = [[f.what, f.value, f.spread, f.goal, MET[f.met], f.detail] for f in figures]
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(f"| {' | '.join(map(str.ljust, line, widths))} |" for line in lines)

def page(found, rounds): return ''
