"""``celery -A proj dedupe ...``: what a team sees and does of its locks from a terminal.

Celery finds the group by the entry point group ``celery.commands``. Each command is a module.

Exit codes: 0 is yes, or done; 1 is no, as each command says; 2 is a wrong use or setting; 3 is a claim store
that does not answer.
"""

from __future__ import annotations

from typing import Any

import click
from celery.bin.base import handle_preload_options

from celery_dedupe.cli import check, explain, locks, release, rules, stats
from celery_dedupe.cli.command import Commands

__all__ = ["dedupe"]


@click.group(cls=Commands)
@click.pass_context
@handle_preload_options
def dedupe(context: click.Context, **_: Any) -> None:
    """See, explain and free what celery-dedupe holds, and count what it saves."""


for _command in (rules.rules, explain.explain, locks.locks, release.release, stats.stats, check.check):
    dedupe.add_command(_command)
