"""``dedupe locks``: what is held, by whom, since when and until when."""

from __future__ import annotations

import heapq
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

import click

from celery_dedupe.cli import shown
from celery_dedupe.cli.claims import Claims, claims_of
from celery_dedupe.cli.command import Wrong, command
from celery_dedupe.cli.oldest import Aged, oldest_first
from celery_dedupe.core.holdings import STATES, Holding, holdings
from celery_dedupe.errors import StoreUnavailable
from celery_dedupe.extension import Dedupe

T = TypeVar("T")
Cells = tuple[str, ...]

HEADS = ("STATE", "AGE", "EXPIRES IN", "TASK", "TASK ID", "NODE", "FENCE", "KEY")
PAUSE = (
    2.0  # seconds between two looks; more where a look takes long, so that it is a fifth of the time at most
)


@command
@click.option("--task", metavar="GLOB", help="Of the tasks with such names only.")
@click.option("--state", type=click.Choice(STATES), help="In this state only.")
@click.option(
    "--watch", is_flag=True, help="Look again and again, until Ctrl-C; shows what the screen holds."
)
def locks(dedupe: Dedupe, as_json: bool, task: str | None, state: str | None, watch: bool) -> None:
    """What is held, oldest first.

    A claim is queued from its publish to its start, running to its end, and done where a lock remembers. A
    lapsed one is a run of lock "once" whose process has died, its end not known.
    """
    if watch and as_json:
        raise Wrong("--watch is for people, and --json is for programs: leave one out")
    claims = claims_of(dedupe, task)
    states = STATES if state is None else (state,)
    if watch:
        _watch(claims, states)
    elif as_json:
        _show_json(oldest_first(_held(claims, states, _document)))
    else:
        show_locks(claims, states)


def show_locks(claims: Claims, states: Collection[str]) -> None:
    """Print what is held in these states, for people, however much it is."""
    widths = [len(head) for head in HEADS]

    def measured() -> Iterator[Aged[Cells]]:
        for order, cells in _held(claims, states, _cells):
            widths[:] = map(max, widths, map(len, cells))
            yield order, cells

    _show(oldest_first(measured()), widths)


def _watch(claims: Claims, states: Collection[str]) -> None:
    try:
        while True:
            started = time.monotonic()
            try:
                _look(claims, states)
            except StoreUnavailable as error:
                click.echo(str(error))
            # A fifth of the time at most is spent on looking, however many locks there are.
            time.sleep(max(PAUSE, 4 * (time.monotonic() - started)))
    except KeyboardInterrupt:
        return


def _look(claims: Claims, states: Collection[str]) -> None:
    """Show the oldest, as many as the screen holds."""
    counts: Counter[str] = Counter()

    def counting() -> Iterator[Aged[Cells]]:
        for order, cells in _held(claims, states, _cells):
            counts[cells[0]] += 1
            yield order, cells

    room = max(shutil.get_terminal_size().lines - 4, 1)
    rows = [cells for _, cells in heapq.nsmallest(room, counting())]
    click.clear()
    shown.show_table(HEADS, rows)
    more = f", of which the oldest {len(rows)}" if counts.total() > len(rows) else ""
    click.echo(f"\n{shown.counted(counts)}{more}, at {time.strftime('%H:%M:%S')}; Ctrl-C ends")


def _held(
    claims: Claims, states: Collection[str], shape: Callable[[str, str, Holding, int], T]
) -> Iterator[Aged[T]]:
    now = claims.now
    for _, key, record in claims.records():
        for part in holdings(record):
            if part.state in states:
                order = part.since, key, part.state, part.owner
                yield order, shape(claims.scope(key) or "", key, part, now)


def _cells(scope: str, key: str, part: Holding, now: int) -> Cells:
    age, left = shown.age(part, now), shown.left(part, now)
    return part.state, age, left, scope, part.task_id, part.node or "-", str(part.fence or "-"), key


def _document(scope: str, key: str, part: Holding, now: int) -> str:
    return json.dumps({"key": key, "scope": scope, **shown.plain(part, now)})


def _show(rows: Iterator[Aged[Cells]], widths: list[int]) -> None:
    counts: Counter[str] = Counter()
    for _, cells in rows:
        if not counts:
            shown.show_row(HEADS, widths)
        counts[cells[0]] += 1
        shown.show_row(cells, widths)
    if counts:
        click.echo()
    click.echo(shown.counted(counts))


def _show_json(rows: Iterator[Aged[str]]) -> None:
    lead = "["
    for _, document in rows:
        click.echo(f"{lead}\n  {document}", nl=False)
        lead = ","
    click.echo("\n]" if lead == "," else "[]")
