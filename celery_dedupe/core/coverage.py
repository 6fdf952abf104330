"""Which rule decides for which task, and which rules decide for none. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from celery_dedupe.core.rules import Match, RuleSet


@dataclass(frozen=True, slots=True)
class RuleUse:
    """What one listed rule comes to.

    Attributes:
        rule: as it is written.
        tasks: the tasks that it decides for.
        shadowed_by: where it decides for none though it matches some: what decides for these instead. Empty
            where it matches no task at all.
    """

    rule: str
    tasks: tuple[str, ...]
    shadowed_by: tuple[str, ...] = ()

    @property
    def complaint(self) -> str:
        """Why the rule is of no use, ``""`` if it is of some."""
        if self.tasks:
            return ""
        if self.shadowed_by:
            return f"shadowed by {', '.join(self.shadowed_by)}"
        return "matches no task"


def coverage(rules: RuleSet, tasks: Mapping[str, Match]) -> tuple[RuleUse, ...]:
    """What every rule comes to, in the order of the rules.

    Arguments:
        tasks: every registered task with what decides for it: one of the rules, or the task's own option.
    """
    uses = []
    for listed in rules.listed:
        reached = {name: match for name, match in tasks.items() if listed.reaches(name)}
        mine = tuple(sorted(name for name, match in reached.items() if match is listed.match))
        others = dict.fromkeys(str(match.rule) for match in reached.values())
        uses.append(RuleUse(str(listed.match.rule), mine, () if mine else tuple(others)))
    return tuple(uses)
