"""``dedupe explain``: what a call's rule makes of it, and what would happen to it now."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import click

from celery_dedupe.cli import shown
from celery_dedupe.cli.claims import claims_of
from celery_dedupe.cli.command import NO, Wrong, command
from celery_dedupe.core import forecast
from celery_dedupe.core.call import Call
from celery_dedupe.core.durations import about
from celery_dedupe.core.fields import FIELDS
from celery_dedupe.core.forecast import Forecast, Scene
from celery_dedupe.core.holdings import holdings
from celery_dedupe.core.keys import Key, make_key
from celery_dedupe.core.record import Record
from celery_dedupe.core.rules import Match
from celery_dedupe.core.spelling import said, said_key, spelled
from celery_dedupe.extension import Dedupe

BEGUN = ("running", "done")  # states whose holders may be runs that have ended in truth
HEADS = ("  STATE", "TASK ID", "NODE", "SINCE", "EXPIRES IN", "FENCE")


@dataclass(frozen=True, slots=True)
class Explained:
    """All that is known of a call. Without a store, in mode off, there are no records."""

    match: Match
    call: Call
    keys: Sequence[Key]
    book: Mapping[str, Record]
    now: int
    publish: Forecast
    start: Forecast


@command
@click.argument("task")
@click.argument("arguments", metavar="[ARGS]", default="[]")
@click.option("--kwargs", default="{}", help="Arguments by name as a JSON object, beside a list of ARGS.")
def explain(dedupe: Dedupe, as_json: bool, task: str, arguments: str, kwargs: str) -> None:
    """Why a call of TASK with ARGS would be sent or dropped now.

    ARGS are the arguments of the call as JSON: a list, or an object of arguments by name. Shows the rule, its
    policies, what their keys are made of, who holds them, and what would happen to a publish and to a start.
    Ends with 1 if the publish would be dropped. Changes nothing.
    """
    args, named = _arguments(arguments, kwargs)
    found = _explain(dedupe, task, args, named)
    if as_json:
        shown.show_json(_document(dedupe, found))
    else:
        _show(dedupe, found)
    if not found.publish.goes:
        raise SystemExit(NO)


def _arguments(arguments: str, kwargs: str) -> tuple[list[Any], dict[str, Any]]:
    args, named = _json("ARGS", arguments), _json("--kwargs", kwargs)
    if isinstance(args, dict) and not named:
        return [], args
    if not isinstance(args, list) or not isinstance(named, dict):
        raise Wrong("ARGS is a JSON list, or an object without --kwargs; --kwargs is an object")
    return args, named


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        mend = """write '[1, "two"]' or '{"account_id": 1}'"""
        raise Wrong(f"{name} {text!r} is not JSON ({error}); {mend}") from None


def _explain(dedupe: Dedupe, task: str, args: list[Any], named: dict[str, Any]) -> Explained:
    match = dedupe.match(task)
    call = Call(task, uuid.uuid4().hex, args, named, dedupe.signature(task))
    if call.signature is not None and dedupe.app.tasks[task].typing:
        try:
            call.signature.bind(*args, **named)
        except TypeError as error:
            raise Wrong(f"Celery refuses such a call of {task}{call.signature}: {error}") from None
    keys = [make_key(call, policy, prefix=dedupe.settings.prefix) for policy in match.policies]
    if dedupe.settings.mode == "off":
        nothing = Forecast(True, "would be sent: dedupe_mode is 'off'")
        return Explained(match, call, keys, {}, 0, nothing, Forecast(True, "would run: dedupe_mode is 'off'"))
    now = claims_of(dedupe).now
    book = {key.text: dedupe.guard.store.read(key.text) for key in keys}
    begun = (one for record in book.values() for state in BEGUN for one in record.holders([state], now))
    states = {one.token: dedupe.guard.state_of(one.task_id, one.started) for one in begun if one.token}
    texts = [key.text for key in keys]
    scene = Scene(call, dedupe.policies(task), texts, book, states, now * 1000)
    return Explained(match, call, keys, book, now, forecast.publish(scene), forecast.start(scene))


def _show(dedupe: Dedupe, found: Explained) -> None:
    task, rule = found.call.task, found.match.rule
    click.echo(f"task       {task}{'' if task in dedupe.app.tasks else ' (not registered here)'}")
    click.echo(f"rule       {'no rule reaches it' if rule is None else rule}")
    if rule is not None and not found.match.policies:
        click.echo("           which leaves it alone")
    for policy, key in zip(found.match.policies, found.keys, strict=True):
        fields = said(policy, [name for name in FIELDS if name not in ("lock", "key")])
        click.echo(f"\nlock       {policy.lock or 'none: it has a rate'}")
        click.echo("fields     " + "\n           ".join(wrap(fields, 88)))
        click.echo(f"key of     {said_key(policy)}")
        click.echo(f"pre-image  {key.preimage}")
        click.echo(f"key        {key.text}")
        _show_record(found.book.get(key.text, Record()), found.now)
    click.echo(f"\nA publish now {found.publish.sentence}.")
    click.echo(f"A start now {found.start.sentence}.")


def _show_record(record: Record, now: int) -> None:
    parts = holdings(record)
    if pace := record.pace:
        promised = pace.tail / 1e6 - now / 1000
        waiting = f"slots are promised for {about(promised)}" if promised > 0 else "nobody waits"
        click.echo(f"starts     {len(pace.starts)} of late; {waiting}")
    if not parts:
        click.echo("record     nobody holds it")
        return
    click.echo("record")
    shown.show_table(
        HEADS,
        [
            (
                f"  {part.state}",
                part.task_id,
                part.node or "-",
                f"{shown.moment(part.since):%Y-%m-%d %H:%M:%S} UTC, {shown.age(part, now)} ago",
                shown.left(part, now),
                str(part.fence or "-"),
            )
            for part in parts
        ],
    )


def _document(dedupe: Dedupe, found: Explained) -> dict[str, Any]:
    return {
        "task": found.call.task,
        "registered": found.call.task in dedupe.app.tasks,
        "mode": dedupe.settings.mode,
        "rule": found.match.rule,
        "locks": [
            {
                "policy": spelled(policy),
                "preimage": key.preimage,
                "key": key.text,
                "record": [
                    shown.plain(part, found.now) for part in holdings(found.book.get(key.text, Record()))
                ],
            }
            for policy, key in zip(found.match.policies, found.keys, strict=True)
        ],
        "publish": {"goes": found.publish.goes, "sentence": found.publish.sentence},
        "start": {"goes": found.start.goes, "sentence": found.start.sentence},
    }
