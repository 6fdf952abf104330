"""``dedupe release``: an operator frees what nobody else will free in time."""

from __future__ import annotations

import getpass
import logging
import os
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

import click

from celery_dedupe.cli.claims import Claims, claims_of
from celery_dedupe.cli.command import NO, Wrong, command
from celery_dedupe.cli.locks import show_locks
from celery_dedupe.cli.oldest import Aged, oldest_first
from celery_dedupe.cli.shown import counted, show_json
from celery_dedupe.core.holdings import STATES, Holding, evict_ask, holdings
from celery_dedupe.extension import Dedupe

AT_ONCE = 1000  # parts in one call to the store
NAMED = 3  # task ids in an audit line

Found = tuple[int, str, Holding]  # the store's place in the list, the key, the part


@dataclass(slots=True)
class Tally:
    """What came of a release. ``changed`` had another owner by the time it was to be freed."""

    wanted: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    freed: Counter[str] = field(default_factory=Counter)
    changed: int = 0
    named: list[str] = field(default_factory=list)


@command
@click.argument("key", required=False)
@click.option("--task", metavar="GLOB", help="All that tasks with such names hold.")
@click.option("--state", type=click.Choice(STATES), help="In this state only.")
@click.option(
    "--force", is_flag=True, help="Running ones too: their tasks lose their leases, and others may start."
)
@click.option("--dry-run", is_flag=True, help="Show what would be freed, and free nothing.")
@click.option("--yes", is_flag=True, help="Do not ask before many are freed.")
def release(
    dedupe: Dedupe,
    as_json: bool,
    key: str | None,
    task: str | None,
    state: str | None,
    force: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Free a lock by its KEY, or those of tasks.

    Frees what is queued, done or lapsed, each where it is still held by whom it was seen to be; a running one
    only by force. Asks before it frees more than one. Writes a line to the log celery_dedupe.audit. Ends with
    1 if a running one was left.
    """
    if (key is None) == (task is None):
        raise Wrong("name one KEY, or tasks by --task GLOB")
    claims = claims_of(dedupe, task, key)
    states = STATES if state is None else (state,)
    tally = Tally()
    found = oldest_first(_found(claims, states, force, tally))
    first = next(found, None)  # Now all have been read.
    if dry_run and not as_json:
        show_locks(claims, states)
    if first is not None and not dry_run:
        if tally.wanted.total() > 1 and not yes:
            click.confirm(f"Free {counted(tally.wanted)}?", abort=True, err=True)
        try:
            _free(claims, (item for _, item in chain([first], found)), tally)
        finally:
            _audit(tally, key or f"--task {task!r}" + (f" --state {state}" if state else ""))
    _show(tally, dry_run, as_json)
    if tally.left:
        raise SystemExit(NO)


def _found(claims: Claims, states: Iterable[str], force: bool, tally: Tally) -> Iterator[Aged[Found]]:
    places = {id(store): place for place, store in enumerate(claims.stores)}
    for store, key, record in claims.records():
        for part in holdings(record):
            if part.state not in states:
                continue
            if part.state == "running" and not force:
                tally.left[part.state] += 1
                continue
            tally.wanted[part.state] += 1
            yield (part.since, key, part.state, part.owner), (places[id(store)], key, part)


def _free(claims: Claims, found: Iterator[Found], tally: Tally) -> None:
    stores = tuple(claims.stores)
    while some := list(islice(found, AT_ONCE)):
        for place in sorted({place for place, _, _ in some}):
            mine = [(key, part) for at, key, part in some if at == place]
            freed = stores[place].evict([evict_ask(key, [part]) for key, part in mine])
            for (_, part), count in zip(mine, freed, strict=True):
                tally.changed += not count
                tally.freed[part.state] += count
                if count and len(tally.named) < NAMED:
                    tally.named.append(part.task_id)


def _audit(tally: Tally, what: str) -> None:
    if tally.freed:
        more = tally.freed.total() - len(tally.named)
        # Fetched only now: logging.config disables the loggers that it finds.
        logging.getLogger("celery_dedupe.audit").warning(
            "celery-dedupe: %s@%s released %s of %s: %s%s",
            _user(), socket.gethostname(), counted(tally.freed), what, ", ".join(tally.named),
            f" and {more:,} more" if more else "",
        )  # fmt: skip


def _user() -> str:
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):
        return f"uid {os.getuid()}"


def _show(tally: Tally, dry_run: bool, as_json: bool) -> None:
    freed = tally.wanted if dry_run else tally.freed
    if as_json:
        show_json({"freed": freed, "changed": tally.changed, "left": tally.left, "dry_run": dry_run})
        return
    click.echo(f"{'would free' if dry_run else 'freed'} {counted(freed)}")
    if tally.changed:
        click.echo(f"{tally.changed:,} had changed hands or ended by then")
    if tally.left:
        click.echo(f"left {counted(tally.left)}, which --force frees")
