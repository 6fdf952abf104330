"""Rates as people write them, ``"10/m"``, ``"2/60s"``, ``(2, 60)`` or a function, and as stores keep them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from celery_dedupe.core.call import Call
from celery_dedupe.core.durations import seconds
from celery_dedupe.core.keyspecs import Dotted, is_dotted
from celery_dedupe.errors import ConfigurationError

RateFunction = Callable[..., Any]
OFFERED = ("task", "args", "kwargs", "key")
MOST = 1000  # starts in one window of a record

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_TEXT = re.compile(r"(\d+)\s*/\s*(\d+(?:\.\d+)?)?\s*(ms|s|m|h|d)", re.ASCII)
_MEND = 'write "10/m", "2/60s", (2, 60), or a function, or its dotted path, that returns one of these'


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``starts`` starts in any window of ``seconds`` seconds."""

    starts: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.starts}/{self.seconds:g}s"


RateSpec = Rate | Dotted | RateFunction | None
RateSource = str | tuple[int, Any] | list[Any] | Rate | Dotted | RateFunction | None


def parse_rate(value: object) -> RateSpec:
    """Return the rate, or the function of one, that ``value`` spells.

    Raises:
        ValueError: it spells none. The message says how to write one.
    """
    if isinstance(value, (Rate, Dotted)):
        return value
    if isinstance(value, str):
        match = _TEXT.fullmatch(value.strip())
        if match is not None:
            return _rate(int(match[1]), f"{match[2] or 1}{match[3]}")
        if is_dotted(value):
            return Dotted(value)
    elif isinstance(value, (tuple, list)) and len(value) == 2:
        return _rate(*value)
    elif callable(value):
        return value
    raise ValueError(f"is no rate: {_MEND}")


def portable_rate(value: object) -> Any:
    """Return a rate as JSON carries it to a worker.

    Raises:
        ConfigurationError: it is a function, which cannot travel.
    """
    if isinstance(value, Rate):
        return [value.starts, value.seconds]
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return [value[0], seconds(value[1])]
    if isinstance(value, Dotted):
        return value.path
    if callable(value):
        raise ConfigurationError(
            f"rate {value!r} is a function, which cannot travel with a call; write its dotted path"
        )
    return value


def check_rate(spec: RateSpec, where: str) -> None:
    """Raise a ``ConfigurationError`` that begins with ``where`` if a rate's function cannot be asked."""
    if spec is not None and not isinstance(spec, Rate):
        _ready(spec, dict.fromkeys(OFFERED), where)


def rate_of(spec: Rate | Dotted | RateFunction, call: Call, key: str) -> Rate:
    """Return the rate of a call; its function gets what it names of ``OFFERED``.

    Raises:
        ConfigurationError: its function cannot be asked, or gives no rate. What it raises goes through.
    """
    if isinstance(spec, Rate):
        return spec
    where = f"the rule of {call.task!r}"
    offered = {"task": call.task, "args": call.args, "kwargs": call.kwargs, "key": key}
    answer = _ready(spec, offered, where)()
    try:
        rate = parse_rate(answer)
    except ValueError as error:
        raise ConfigurationError(
            f"{where}: rate {_named(spec)!r} returned {answer!r}, which {error}"
        ) from None
    if not isinstance(rate, Rate):
        raise ConfigurationError(f"{where}: rate {_named(spec)!r} returned another function, {answer!r}")
    return rate


def kept(rate: Rate) -> tuple[int, int]:
    """Return the starts and the window, in microseconds, by which a store keeps the rate.

    A record has room for ``MOST`` starts: what is more is kept as so much less in so much shorter a window,
    which allows no more. The window is stretched a little, since a run begins a moment after the store has
    counted it, and some moments are longer than others.
    """
    parts = -(-rate.starts // MOST)
    window = rate.seconds / parts
    return rate.starts // parts, int((window + min(window * 0.05, 0.5)) * 1e6) + 1


def _rate(starts: object, duration: object) -> Rate:
    if not isinstance(starts, int) or isinstance(starts, bool) or starts < 1:
        raise ValueError("is no rate: the number of starts must be a whole number of 1 or more")
    return Rate(starts, seconds(duration))


def _ready(spec: Dotted | RateFunction, offered: Mapping[str, Any], where: str) -> Callable[[], Any]:
    """The function with what it asks for of ``offered``."""
    try:
        function = spec.load() if isinstance(spec, Dotted) else spec
        parameters = inspect.signature(function).parameters
    except ValueError as error:
        raise ConfigurationError(f"{where}: rate {_named(spec)!r} {error}") from error
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return partial(function, **offered)
    for name, parameter in parameters.items():
        if name not in offered and parameter.default is parameter.empty and parameter.kind in _NAMED:
            known = ", ".join(OFFERED)
            raise ConfigurationError(f"{where}: rate {_named(spec)!r} asks for {name!r}; it may have {known}")
    return partial(function, **{name: value for name, value in offered.items() if name in parameters})


def _named(spec: Dotted | RateFunction) -> str:
    return spec.path if isinstance(spec, Dotted) else getattr(spec, "__qualname__", repr(spec))
