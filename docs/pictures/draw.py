"""Draws every picture of the documentation anew: ``python docs/pictures/draw.py``."""

from __future__ import annotations

from pathlib import Path

from chart import chart
from story import play
from timeline import timeline

from celery_dedupe.core.locks import LOCKS


def pictures() -> dict[str, str]:
    """Return the text of each picture by the name of its file."""
    found = {f"{lock}.svg": timeline(lock, play(lock)) for lock in LOCKS}
    return {**found, "which-lock.svg": chart()}


if __name__ == "__main__":
    for name, drawn in pictures().items():
        (Path(__file__).parent / name).write_text(drawn, encoding="utf-8")
