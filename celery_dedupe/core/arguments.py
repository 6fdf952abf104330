"""The arguments of a call by name, however they were passed."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from celery_dedupe.core.call import Call
from celery_dedupe.core.suggestions import choices
from celery_dedupe.errors import ConfigurationError

_REST = inspect.Parameter.VAR_POSITIONAL
_OPTIONS = inspect.Parameter.VAR_KEYWORD
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NONE: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a call passes.

    Attributes:
        named: arguments by name, with defaults where the signature is known.
        unnamed: positional arguments that no name is known for.
        groups: the signature's ``*args`` and ``**kwargs`` as wholes, by their names.
        defaulted: the names in ``named`` that the call left to their defaults.
        shape: ``"all"``, or ``"unfit"`` where the call does not suit the signature, or ``"shadowed"`` where a
            key of ``**kwargs`` has the name of a positional-only argument; ``unnamed`` then ends with
            ``**kwargs`` as a whole.
    """

    named: Mapping[str, Any]
    unnamed: Sequence[Any] = ()
    groups: Mapping[str, Any] = field(default_factory=dict)
    defaulted: tuple[str, ...] = ()
    shape: Literal["all", "unfit", "shadowed"] = "all"


def bind(call: Call, params: tuple[str, ...] | None) -> Arguments:
    """Bind the call to its signature, or to the names in ``params`` where the task is unknown here."""
    if call.signature is None:
        return _by_names(call, params or ())
    try:
        bound = call.signature.bind(*call.args, **call.kwargs).arguments
    except TypeError:
        return replace(_by_names(call, positional(call.signature)), shape="unfit")
    named: dict[str, Any] = {}
    groups: dict[str, Any] = {}
    defaulted: list[str] = []
    rest: Sequence[Any] = ()
    options: Mapping[str, Any] = _NONE
    for name, parameter in call.signature.parameters.items():
        kind = parameter.kind
        if kind is _REST:
            groups[name] = rest = bound.get(name, ())
        elif kind is _OPTIONS:
            groups[name] = options = bound.get(name, _NONE)
        elif name in bound:
            named[name] = bound[name]
        else:
            named[name] = parameter.default
            defaulted.append(name)
    if not named.keys().isdisjoint(options):
        return Arguments(named, (*rest, options), groups, tuple(defaulted), shape="shadowed")
    return Arguments({**named, **options}, rest, groups, tuple(defaulted))


def positional(signature: inspect.Signature) -> tuple[str, ...]:
    """Return the names of the arguments that may be passed by position, in order."""
    return tuple(name for name, parameter in signature.parameters.items() if parameter.kind in _BY_POSITION)


def check_names(names: Iterable[str], signature: inspect.Signature, where: str) -> None:
    """Raise a ``ConfigurationError`` that begins with ``where`` if the task has no argument of one name."""
    parameters = signature.parameters
    if any(parameter.kind is _OPTIONS for parameter in parameters.values()):
        return
    for name in names:
        if name not in parameters:
            known = choices(name, parameters)
            raise ConfigurationError(
                f"{where} names {name!r}, an argument that the task does not have; {known}"
            )


def _by_names(call: Call, names: tuple[str, ...]) -> Arguments:
    named = dict(zip(names, call.args, strict=False))
    if not named.keys().isdisjoint(call.kwargs):
        return Arguments(call.kwargs, call.args, shape="unfit")
    return Arguments({**named, **call.kwargs}, call.args[len(names) :])
