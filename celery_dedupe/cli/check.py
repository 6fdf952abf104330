"""``dedupe check``: whether all is in place, here, in the claim store, and at the workers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click

from celery_dedupe.cli.asking import Answers, BrokerAway, ask
from celery_dedupe.cli.claims import claims_of
from celery_dedupe.cli.command import NO, command
from celery_dedupe.cli.leftovers import leftovers
from celery_dedupe.cli.shown import show_json
from celery_dedupe.core.coverage import coverage
from celery_dedupe.core.findings import Finding
from celery_dedupe.core.workers import Worker, clock, compared, skew
from celery_dedupe.errors import StoreUnavailable
from celery_dedupe.extension import Dedupe
from celery_dedupe.inspection import identity

ORDER = ("error", "warning", "note")


@command
@click.option("--timeout", default=1.0, show_default=True, help="Seconds to wait for the answers of workers.")
def check(dedupe: Dedupe, as_json: bool, timeout: float) -> None:
    """Whether all is in place.

    Does what a worker does when it is ready, looks for rules that count for no task, asks all workers,
    compares their rules and clocks, and looks for claims that nobody will free. What needs a broker is left
    out where none answers. Ends with 1 if there is an error.
    """
    dedupe.check()
    mine = Worker(node="this program", **identity(dedupe))
    found = [*_rules(dedupe)]
    answers, notes = _ask(dedupe, timeout)
    found += notes
    if answers is not None:
        found += _workers(dedupe, mine, answers, timeout)
    place = "not looked at in mode off"
    if mine.mode != "off":
        checked = dedupe.checked()
        place = checked.place
        found += [*checked.findings, *_store(dedupe, answers, timeout)]
    found.sort(key=lambda finding: ORDER.index(finding.kind))
    workers = answers.workers if answers else ()
    if as_json:
        show_json(_document(mine, place, workers, found))
    else:
        _show(mine, place, workers, found)
    if any(finding.kind == "error" for finding in found):
        raise SystemExit(NO)


def _rules(dedupe: Dedupe) -> Iterator[Finding]:
    tasks = {name: dedupe.match(name) for name in dedupe.app.tasks}
    for use in coverage(dedupe.settings.rules, tasks):
        if use.complaint:
            yield Finding("warning", f"rule {use.rule!r} counts for no task: {use.complaint}")


def _ask(dedupe: Dedupe, timeout: float) -> tuple[Answers | None, list[Finding]]:
    try:
        return ask(dedupe.app, timeout), []
    except BrokerAway as error:
        return None, [Finding("note", f"no worker was asked, for no broker answers ({error})")]


def _workers(dedupe: Dedupe, mine: Worker, answers: Answers, timeout: float) -> Iterator[Finding]:
    bare = answers.without(dedupe.guarded())
    ours = [one for one in answers.workers if not set(one.tasks).isdisjoint(mine.tasks)]
    yield from compared(mine, ours, bare)
    for node, error in answers.failed.items():
        yield Finding("error", f"{node} cannot say what it holds: {error}")
    if not (ours or bare or answers.failed):
        text = f"no worker with these tasks has answered within {timeout:g} s: nobody gives claims back"
        yield Finding("warning", text)


def _store(dedupe: Dedupe, answers: Answers | None, timeout: float) -> Iterator[Finding]:
    claims = claims_of(dedupe)
    try:
        asked = time.time()
        its = claims.now / 1000
        yield from clock("the claim store's clock", skew(its, asked, time.time()))
        yield from leftovers(dedupe, claims, answers, timeout)
    except StoreUnavailable:
        return  # The self-check has told.
    except BrokerAway as error:
        yield Finding("note", f"claims were not compared with messages: the broker does not tell ({error})")


def _show(mine: Worker, place: str, workers: Sequence[Worker], found: Sequence[Finding]) -> None:
    click.echo(f"mode     {mine.mode}")
    click.echo(f"rules    {mine.digest}")
    click.echo(f"claims   {place}")
    for one in workers:
        holds = f"rules {one.digest}, {len(one.leases)} leases, version {one.version}"
        click.echo(f"worker   {one.node}: {holds}")
    click.echo()
    for finding in found:
        click.echo(f"{finding.kind:7}  {finding.text}")
    if found:
        click.echo()
    counts = Counter[str](finding.kind for finding in found if finding.kind != "note")
    said = [f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in counts.items()]
    click.echo(", ".join(said) or "all in place")


def _document(
    mine: Worker, place: str, workers: Sequence[Worker], found: Sequence[Finding]
) -> dict[str, Any]:
    return {
        "ok": all(finding.kind != "error" for finding in found),
        "mode": mine.mode,
        "claims": place,
        "rules": mine.digest,
        "workers": [asdict(one) for one in workers],
        "findings": [asdict(finding) for finding in found],
    }
