"""Policies as programs and people read them, and rules as one digest. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

from celery_dedupe.core.durations import spoken
from celery_dedupe.core.fields import DURATIONS, FIELDS, misfit
from celery_dedupe.core.keyspecs import Dotted, KeySpec, Template
from celery_dedupe.core.places import DEFAULT
from celery_dedupe.core.policy import Policy
from celery_dedupe.core.rates import RateSpec
from celery_dedupe.core.rules import RuleSet
from celery_dedupe.core.terms import written


def spelled(policy: Policy) -> dict[str, Any]:
    """Every field that has a meaning for the policy's lock, as plain JSON. Durations are seconds."""
    fields = {name: getattr(policy, name) for name in FIELDS}
    fitting = {name: value for name, value in fields.items() if not misfit(name, policy.traits, value)}
    rate = {"rate": _rate(policy.rate)} if policy.traits.paced else {}
    return {**fitting, "key": _key(policy.key), **rate}


def said(policy: Policy, names: Iterable[str]) -> str:
    """These of a policy's fields, where they are set, for people to read: ``"queue_ttl 2h, lease 1m"``."""
    fields = spelled(policy)
    words = {name: _word(name, fields[name]) for name in names if name in fields}
    return ", ".join(f"{name} {word}" for name, word in words.items() if word)


def said_key(policy: Policy) -> str:
    """What the policy's key is made of, for people to read."""
    key = _key(policy.key)
    if key is None:
        return "all arguments"
    return (", ".join(key) or "the name alone") if isinstance(key, list) else str(key)


def unusual(policy: Policy) -> list[str]:
    """Names of the fields that are not what they would be anyway, but for the lock and the key."""
    return [name for name in written(policy) if name not in ("lock", "key")]


def digest(rules: RuleSet) -> str:
    """Twelve digits that are the same exactly where two sets of rules say the same, in the same order."""
    listed: list[tuple[str, list[Mapping[str, Any]]]] = [
        (str(rule.match.rule), [spelled(policy) for policy in rule.match.policies]) for rule in rules.listed
    ]
    return sha256(json.dumps(listed, sort_keys=True, default=list).encode()).hexdigest()[:12]


def _key(key: KeySpec) -> Any:
    if isinstance(key, Dotted):
        return key.path
    if isinstance(key, Template):
        return key.text
    if callable(key):
        return _function(key)
    return key if key is None else list(key)


def _rate(rate: RateSpec) -> str:
    if isinstance(rate, Dotted):
        return rate.path
    return _function(rate) if callable(rate) else str(rate)


def _function(function: Any) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '')}:{name}"


def _word(name: str, value: Any) -> str:
    if name in DURATIONS:
        return "for ever" if value is None else spoken(value)
    if value is None or value is False or (name, value) == ("store", DEFAULT):
        return ""
    return ", ".join(value) if isinstance(value, (list, tuple)) else str(value)
