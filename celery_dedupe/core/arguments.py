"""The arguments of a call by name, however they were passed."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from celery_dedupe.core.call import Call
from celery_dedupe.core.suggestions import choices
from celery_dedupe.errors import ConfigurationError

_REST = inspect.Parameter.VAR_POSITIONAL
_OPTIONS = inspect.Parameter.VAR_KEYWORD
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_POSITION = inspect.Parameter.POSITIONAL_ONLY
_EITHER = inspect.Parameter.POSITIONAL_OR_KEYWORD
_REQUIRED = inspect.Parameter.empty
_NONE: Mapping[str, Any] = MappingProxyType({})


class Arguments(NamedTuple):
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
    groups: Mapping[str, Any] = _NONE
    defaulted: tuple[str, ...] = ()
    shape: Literal["all", "unfit", "shadowed"] = "all"


def bind(call: Call, params: tuple[str, ...] | None) -> Arguments:
    """Bind the call to its signature, or to the names in ``params`` where the task is unknown here.

    Binds as Python does. ``inspect.Signature.bind`` takes too long for every publish, and refuses some calls.
    """
    if call.signature is None:
        return _by_names(call, params or ())
    args, given, left = call.args, len(call.args), dict(call.kwargs)
    named: dict[str, Any] = {}
    groups: dict[str, Any] = {}
    defaulted: list[str] = []
    used, rest, open_ended = 0, args[:0], False
    for name, parameter in call.signature.parameters.items():
        kind = parameter.kind
        if kind is _REST:
            groups[name] = rest = args[used:]
            used = given
        elif kind is _OPTIONS:
            groups[name], open_ended = left, True
        elif used < given and kind is not _KEYWORD:
            named[name] = args[used]
            used += 1
        elif name in left and kind is not _POSITION:
            named[name] = left.pop(name)
        elif parameter.default is _REQUIRED:
            return _unfit(call, call.signature)
        else:
            named[name] = parameter.default
            defaulted.append(name)
    shadowed = [name for name in left if name in named]
    clash = any(call.signature.parameters[name].kind is not _POSITION for name in shadowed)
    if clash or used < given or (left and not open_ended):
        return _unfit(call, call.signature)
    if shadowed:
        return Arguments(named, (*rest, left), groups, tuple(defaulted), "shadowed")
    return Arguments({**named, **left}, rest, groups, tuple(defaulted))


def positional(signature: inspect.Signature) -> tuple[str, ...]:
    """Return the names of the arguments that may be passed by position, in order."""
    return tuple(
        name for name, parameter in signature.parameters.items() if parameter.kind in (_POSITION, _EITHER)
    )


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


def _unfit(call: Call, signature: inspect.Signature) -> Arguments:
    return _by_names(call, positional(signature))._replace(shape="unfit")


def _by_names(call: Call, names: tuple[str, ...]) -> Arguments:
    named = dict(zip(names, call.args, strict=False))
    if not named.keys().isdisjoint(call.kwargs):
        return Arguments(call.kwargs, call.args, shape="unfit")
    return Arguments({**named, **call.kwargs}, call.args[len(names) :])
