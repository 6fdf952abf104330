"""What a rule asks for, read from how people write it, and a call's own wishes laid over it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from celery_dedupe.core.durations import seconds
from celery_dedupe.core.fields import FIELDS, misfit, need_period, read_field
from celery_dedupe.core.keyspecs import Dotted, Template
from celery_dedupe.core.locks import LOCKS, RATE, Lock, kind_of
from celery_dedupe.core.rates import portable_rate
from celery_dedupe.core.suggestions import choices
from celery_dedupe.core.terms import Policy, written
from celery_dedupe.errors import ConfigurationError

__all__ = ["LOCKS", "Lock", "Policy", "overlay", "parse_policies", "portable"]

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def parse_policies(
    value: object,
    *,
    where: str,
    defaults: Mapping[str, Any] = _NOTHING,
    named: Mapping[str, Any] = _NOTHING,
) -> tuple[Policy, ...]:
    """Return the policies that a rule's value spells, in order; none for ``None`` and ``False``.

    Args:
        value: a policy's name, a dict of fields, a :class:`Policy`, or a list of them. The ``lock`` of a dict
            may be one of ``named``: the dict's other fields are laid over it.
        where: the setting that holds the value, for error messages.
        defaults: fields for what the value leaves open, applied where they suit the lock.
        named: the user's own policies, by name.

    Raises:
        ConfigurationError: the value is wrong; the message begins with ``where``.
    """
    return _apart(_Reader(defaults, named).read(value, where))


def overlay(
    policies: tuple[Policy, ...],
    value: object,
    *,
    where: str,
    defaults: Mapping[str, Any] = _NOTHING,
    named: Mapping[str, Any] = _NOTHING,
) -> tuple[Policy, ...]:
    """Return the policies of a call that brings a ``dedupe=`` option of its own.

    ``None`` and ``False`` leave the call alone. A dict lays its fields over each of the task's ``policies``,
    or over the default policy if there is none; each field must suit at least one of them. Anything else
    replaces them. A ``key`` without braces is a literal text here.

    Raises:
        ConfigurationError: the value is wrong; the message begins with ``where``.
    """
    reader = _Reader(defaults, named, literal_keys=True)
    if isinstance(value, Mapping) and policies and reader.base(value) is None:
        return _apart(reader.lay(value, policies, where))
    return _apart(reader.read(value, where))


def portable(value: object) -> Any:
    """Return a call's ``dedupe=`` option in a form that JSON carries and :func:`overlay` reads.

    A key function is left out, since the key itself travels with the message.

    Raises:
        ConfigurationError: it has a rate function, which cannot travel.
    """
    if isinstance(value, Policy):
        # A list replaces the task's policies, as the object does. It holds every field that the lock has, so
        # that no defaults at the other end change it.
        fields = {name: getattr(value, name) for name in FIELDS}
        return [
            portable({name: item for name, item in fields.items() if not misfit(name, value.traits, item)})
        ]
    if isinstance(value, Mapping):
        return {
            name: portable_rate(item) if name == "rate" else portable(item)
            for name, item in value.items()
            if not (name == "key" and (callable(item) or isinstance(item, Dotted)))
        }
    if isinstance(value, (list, tuple)):
        return [portable(item) for item in value]
    if isinstance(value, Template):
        return value.text
    return seconds(value) if isinstance(value, timedelta) else value


@dataclass(frozen=True, slots=True)
class _Reader:
    defaults: Mapping[str, Any]
    named: Mapping[str, Any]
    literal_keys: bool = False

    def read(self, value: object, where: str) -> tuple[Policy, ...]:
        if value is None or value is False:
            return ()
        if isinstance(value, Policy):
            return (value,)
        if isinstance(value, str):
            return self._by_name(value, where)
        if isinstance(value, Mapping):
            if (base := self.base(value)) is not None:
                rest = {name: item for name, item in value.items() if name != "lock"}
                return self.lay(rest, self._by_name(base, where), where)
            return self._build(value, where)
        if isinstance(value, (list, tuple)):
            each = (self.read(item, f"{where}[{index}]") for index, item in enumerate(value))
            return tuple(policy for some in each for policy in some)
        raise ConfigurationError(
            f"{where}: {value!r} is no policy; write a policy's name, a dict of fields, a Policy, "
            "a list of them, or None to leave the task alone"
        )

    def base(self, value: Mapping[str, Any]) -> str | None:
        """Return the name of the policy that a dict builds on, if its ``lock`` is not a lock's."""
        name = value.get("lock")
        return name if isinstance(name, str) and name not in LOCKS else None

    def _by_name(self, name: str, where: str) -> tuple[Policy, ...]:
        if name in LOCKS:
            return self._build({"lock": name}, where)
        if name not in self.named:
            known = choices(name, [*LOCKS, *self.named])
            raise ConfigurationError(f"{where}: there is no lock or policy {name!r}; {known}")
        others = {other: value for other, value in self.named.items() if other != name}
        return _Reader(self.defaults, others).read(self.named[name], f"{where}: dedupe_policies[{name!r}]")

    def lay(self, over: Mapping[str, Any], policies: tuple[Policy, ...], where: str) -> tuple[Policy, ...]:
        """Lay the fields over each policy whose lock they suit; a field that suits none is an error."""
        values = self._values(over, where)
        kinds = [
            RATE if policy.traits.paced else kind_of({"lock": values.get("lock", policy.lock)})
            for policy in policies
        ]
        for name, value in values.items():
            reasons = [misfit(name, kind, value) for kind in kinds]
            if reasons and all(reasons):
                raise ConfigurationError(f"{where}: {name} {over[name]!r} {reasons[0]}")
        return tuple(
            _make(kind, values, written(policy), where) for kind, policy in zip(kinds, policies, strict=True)
        )

    def _build(self, fields: Mapping[str, Any], where: str) -> tuple[Policy]:
        values = self._values(fields, where)
        background = _Reader(self.defaults, self.named)._values(self.defaults, "dedupe_defaults")
        if "lock" in values and values.get("rate") is not None:
            raise ConfigurationError(f"{where} has a lock and a rate; make them two policies of a list")
        kind = kind_of(values if {"lock", "rate"} & values.keys() else background)
        for name, value in values.items():
            if reason := misfit(name, kind, value):
                raise ConfigurationError(f"{where}: {name} {fields[name]!r} {reason}")
        return (_make(kind, values, background, where),)

    def _values(self, fields: Mapping[str, Any], where: str) -> dict[str, Any]:
        return {
            name: read_field(name, value, where=where, literal_key=self.literal_keys)
            for name, value in fields.items()
        }


def _make(kind: Lock, values: Mapping[str, Any], background: Mapping[str, Any], where: str) -> Policy:
    """Return the policy of ``values``, and of those in ``background`` that suit its kind."""
    merged = {**background, **values}
    need_period(kind, merged, where=where)
    return Policy(**{name: value for name, value in merged.items() if not misfit(name, kind, value)})


def _apart(policies: tuple[Policy, ...]) -> tuple[Policy, ...]:
    """Number those that would make an earlier one's key: each of a task's locks has a key of its own.

    A rate never has a lock's: tasks that share it by its scope may have other locks beside it.
    """
    seen: list[tuple[bool, str | None, object]] = []
    result: list[Policy] = []
    for policy in policies:
        key = frozenset(policy.key) if isinstance(policy.key, tuple) else policy.key
        like = policy.traits.paced, policy.scope, key
        part = f"{'rate' if policy.traits.paced else ''}{seen.count(like) or ''}"
        seen.append(like)
        result.append(policy if policy.part == part else replace(policy, part=part))
    return tuple(result)
