"""``dedupe rules``: which rule counts for which task, and which count for none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import click

from celery_dedupe.cli.command import command
from celery_dedupe.cli.shown import show_json, show_table
from celery_dedupe.core.coverage import RuleUse, coverage
from celery_dedupe.core.policy import Policy
from celery_dedupe.core.rules import Match
from celery_dedupe.core.spelling import said, said_key, spelled, unusual
from celery_dedupe.extension import Dedupe

HEADS = ("TASK", "RULE", "LOCK", "KEY", "OTHER FIELDS")


@command
def rules(dedupe: Dedupe, as_json: bool) -> None:
    """Which rule counts for which task.

    Shows every registered task with its rule and policies, what no rule reaches, and the rules that match no
    task or are shadowed by others.
    """
    tasks = {name: dedupe.match(name) for name in sorted(dedupe.app.tasks)}
    uses = coverage(dedupe.settings.rules, tasks)
    if as_json:
        show_json(_document(dedupe, tasks, uses))
        return
    if dedupe.settings.mode == "off":
        click.echo("dedupe_mode is 'off': no rule counts. If it were on:\n")
    reached = {name: match for name, match in tasks.items() if match.rule is not None}
    if reached:
        show_table(HEADS, (row for name, match in reached.items() for row in _rows(name, match)))
    _show_idle(uses)
    _show_unreached([name for name in tasks if name not in reached])


def _rows(name: str, match: Match) -> Iterator[Sequence[str]]:
    if not match.policies:
        yield name, str(match.rule), "-", "-", "left alone"
    for place, policy in enumerate(match.policies):
        first = (name, str(match.rule)) if place == 0 else ("", "")
        yield *first, policy.traits.name, said_key(policy), said(policy, unusual(policy)) or "-"


def _show_idle(uses: Sequence[RuleUse]) -> None:
    idle = [use for use in uses if use.complaint]
    if idle:
        click.echo(f"\nRules that count for no task: {len(idle)}")
        for use in idle:
            click.echo(f"  {use.rule}: {use.complaint}")


def _show_unreached(names: Sequence[str]) -> None:
    own = [name for name in names if name.startswith("celery.")]
    others = [name for name in names if name not in own]
    click.echo(f"\nTasks that no rule reaches: {len(others)}, and {len(own)} of Celery's own")
    for name in others:
        click.echo(f"  {name}")


def _document(dedupe: Dedupe, tasks: Mapping[str, Match], uses: Sequence[RuleUse]) -> dict[str, object]:
    def policies(some: Sequence[Policy]) -> list[dict[str, object]]:
        return [spelled(policy) for policy in some]

    return {
        "mode": dedupe.settings.mode,
        "tasks": [
            {"task": name, "rule": match.rule, "policies": policies(match.policies)}
            for name, match in tasks.items()
        ],
        "rules": [{"rule": use.rule, "tasks": use.tasks, "complaint": use.complaint or None} for use in uses],
        "unreached": [name for name, match in tasks.items() if match.rule is None],
    }
