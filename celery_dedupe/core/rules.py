"""Which policies a task has, by its name: the matching of Celery's own ``task_routes``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from typing import Any

from celery_dedupe.core.policy import Policy, parse_policies
from celery_dedupe.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Match:
    """What a task's name comes to: the rule that speaks for it, as text, and the rule's policies."""

    rule: str | None = None
    policies: tuple[Policy, ...] = ()


@dataclass(frozen=True, slots=True)
class Listed:
    """A rule as it is listed, and the names that it matches, whether or not it is the one that decides."""

    match: Match
    pattern: re.Pattern[str] | None = None  # None: an exact name

    def reaches(self, name: str) -> bool:
        """Whether the rule would decide for the task ``name`` if it were the only one."""
        if self.pattern is None:
            return name == self.match.rule
        return not name.startswith("celery.") and self.pattern.match(name) is not None


class RuleSet:
    """The rules of an app.

    An exact name beats every pattern; then the first listed glob or compiled pattern that matches decides.
    As in ``task_routes``, a name is a glob if it has a ``*``, and a compiled pattern is matched from the
    start of the name. Celery's own tasks, ``celery.*``, are reached by their exact names only.

    Arguments:
        rules: a mapping, or a list of pairs, of names, globs or compiled patterns to what
            :func:`parse_policies` reads.
        defaults: fields for what the rules leave open.
        named: the user's own policies, by name.
        where: the setting that holds the rules, for error messages.

    Attributes:
        listed: every rule, in the order of the mapping or list.

    Raises:
        ConfigurationError: a rule is wrong. All rules are read at once, so that it shows early.
    """

    def __init__(
        self,
        rules: object,
        *,
        defaults: Mapping[str, Any] | None = None,
        named: Mapping[str, Any] | None = None,
        where: str = "dedupe_rules",
    ) -> None:
        self._exact: dict[str, Listed] = {}
        self._patterns: dict[re.Pattern[str], Listed] = {}
        self._resolved: dict[str, Match] = {}
        self.listed: tuple[Listed, ...] = ()
        for name, value in _pairs(rules, where):
            at = f"{where}[{name!r}]"
            match = Match(
                name if isinstance(name, str) else repr(name),
                parse_policies(value, where=at, defaults=defaults or {}, named=named or {}),
            )
            if isinstance(name, str) and "*" not in name:
                self.listed += (Listed(match),)
                self._exact[name] = self.listed[-1]
            else:
                pattern = _compiled(name, at)
                self.listed += (Listed(match, pattern),)
                self._patterns[pattern] = self.listed[-1]

    def __repr__(self) -> str:
        return f"RuleSet({', '.join(str(rule.match.rule) for rule in self.listed)})"

    def resolve(self, name: str) -> Match:
        """Return what the rules say of the task ``name``; a :class:`Match` without policies if they do not.

        A name is looked up once and remembered.
        """
        match = self._resolved.get(name)
        if match is None:
            match = self._resolved[name] = self._look_up(name)
        return match

    def _look_up(self, name: str) -> Match:
        if name in self._exact:
            return self._exact[name].match
        return next((rule.match for rule in self._patterns.values() if rule.reaches(name)), Match())


def _pairs(rules: object, where: str) -> Iterable[tuple[Any, Any]]:
    if isinstance(rules, Mapping):
        return rules.items()
    if not isinstance(rules, (list, tuple)) or not all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in rules
    ):
        raise ConfigurationError(
            f"{where} is of type {type(rules).__name__}; write a dict of task names or globs to policies"
        )
    return rules


def _compiled(name: object, where: str) -> re.Pattern[str]:
    if isinstance(name, str):
        return re.compile(translate(name))
    if isinstance(name, re.Pattern) and isinstance(name.pattern, str):
        return name
    raise ConfigurationError(
        f"{where}: {name!r} is no rule's name; write a task's name, a glob or a text pattern"
    )
