"""How things are shown: JSON for programs, aligned text for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import click

from celery_dedupe.core.durations import about
from celery_dedupe.core.holdings import STATES, Holding


def show_json(value: Any) -> None:
    """Print a value for programs."""
    click.echo(json.dumps(value, indent=2))


def show_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows for people, each column as wide as its widest cell."""
    lines = [heads, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        show_row(line, widths)


def show_row(cells: Sequence[str], widths: Sequence[int]) -> None:
    """Print one row for people."""
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    click.echo("  ".join(padded).rstrip())


def plain(part: Holding, now: int) -> dict[str, Any]:
    """A part of a record for programs; ``now`` is ms of the store's clock. Times are seconds and UTC."""
    return {
        "state": part.state,
        "task_id": part.task_id,
        "node": part.node or None,
        "since": moment(part.since).isoformat(timespec="milliseconds"),
        "age": (now - part.since) / 1000,
        "expires_in": None if part.expires_at is None else (part.expires_at - now) / 1000,
        "fence": part.fence or None,
    }


def age(part: Holding, now: int) -> str:
    """For how long it has been there, for people."""
    return about((now - part.since) / 1000)


def left(part: Holding, now: int) -> str:
    """For how long it will be there unless renewed, for people."""
    return "never" if part.expires_at is None else about((part.expires_at - now) / 1000)


def counted(counts: Mapping[str, int]) -> str:
    """``{"queued": 3, "running": 1}`` for people: ``"3 queued, 1 running"``."""
    return ", ".join(f"{counts[state]:,} {state}" for state in STATES if counts.get(state)) or "nothing"


def moment(ms: int) -> datetime:
    """A time of the store's clock."""
    return datetime.fromtimestamp(ms / 1000, timezone.utc)
