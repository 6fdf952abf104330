"""``dedupe stats``: what became of each task's publishes and starts, and what that saved."""

from __future__ import annotations

from collections.abc import Sequence

import click

from celery_dedupe.cli import shown
from celery_dedupe.cli.command import Wrong, command
from celery_dedupe.core.counts import COUNTED, HOUR, KEPT, Counted, Line, lines
from celery_dedupe.core.durations import seconds, spoken
from celery_dedupe.extension import Dedupe

HEADS: dict[Counted, str] = {"lease_lost": "LEASES LOST"}  # where it is not the word itself
ALWAYS = ("published", "dropped", "started", "skipped", "waited", "lease_lost", "unprotected")
BAR = 10  # characters


@command
@click.option(
    "--since",
    default="24h",
    show_default=True,
    metavar="DURATION",
    help="Of so long; whole hours are counted.",
)
def stats(dedupe: Dedupe, as_json: bool, since: str) -> None:
    """What became of each task's publishes and starts, over all machines, and what was saved.

    Of the calls, published and dropped, those are saved that were dropped or skipped. What a lock that only
    observes would have done is told beside.
    """
    if dedupe.settings.mode == "off":
        raise Wrong("dedupe_mode is 'off', so nothing is counted")
    if not dedupe.settings.stats:
        raise Wrong("dedupe_stats is False, so nothing is counted")
    now = dedupe.guard.store.clock()
    first = (now - _ms(since)) // HOUR * HOUR
    found = lines(dedupe.guard.counters.read(first))
    if as_json:
        shown.show_json(_document(found, first, now))
    else:
        _show(found, first)


def _ms(since: str) -> int:
    try:
        ms = int(seconds(since) * 1000)
    except ValueError as error:
        raise Wrong(f"--since {since!r} {error}") from None
    if ms > KEPT - HOUR:
        raise Wrong(f"--since {since!r}: counts are kept for {spoken(KEPT / 1000)}; write 7d or less")
    return ms


def _show(found: Sequence[Line], first: int) -> None:
    since = f"since {shown.moment(first):%Y-%m-%d %H:%M} UTC"
    if not found:
        click.echo(f"nothing was counted {since}")
        return
    told = [word for word in COUNTED if word in ALWAYS or any(line.counts[word] for line in found)]
    would = [word for word in COUNTED if word.startswith("would")]
    _table(found, [word for word in told if word not in would], "SAVED", [line.saved for line in found])
    observed = [line for line in found if any(line.counts[word] for word in would)]
    if observed:
        click.echo("\nWhat locks that only observe would have done:")
        _table(observed, would, "WOULD SAVE", [line.would_save for line in observed])
    click.echo(f"\n{since}")


def _table(found: Sequence[Line], words: Sequence[Counted], head: str, shares: Sequence[float]) -> None:
    tasks = ["TASK", *(line.task for line in found)]
    bars = [head, *(f"{share:4.0%} {'#' * round(share * BAR):.<{BAR}}" for share in shares)]
    heads, *rows = zip(tasks, *(_numbers(word, found) for word in words), bars, strict=True)
    shown.show_table(heads, rows)


def _numbers(word: Counted, found: Sequence[Line]) -> list[str]:
    head = HEADS.get(word, word.replace("_", " ").upper())
    cells = [head, *(f"{line.counts[word]:,}" for line in found)]
    width = max(map(len, cells))
    return [cell.rjust(width) for cell in cells]


def _document(found: Sequence[Line], first: int, now: int) -> dict[str, object]:
    return {
        "since": shown.moment(first).isoformat(),
        "until": shown.moment(now).isoformat(timespec="milliseconds"),
        "tasks": [
            {"task": line.task, **line.counts, "saved": line.saved, "would_save": line.would_save}
            for line in found
        ],
    }
