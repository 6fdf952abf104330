"""The fields of a policy: how each is read, and which lock each belongs to, or whether to a rate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Literal, get_args

from celery_dedupe.core.durations import seconds
from celery_dedupe.core.keyspecs import parse_key
from celery_dedupe.core.locks import LOCKS, RATE, Lock, OnConflict, OnStoreError
from celery_dedupe.core.rates import parse_rate
from celery_dedupe.core.suggestions import choices
from celery_dedupe.errors import ConfigurationError

OnDuplicate = Literal["existing", "none", "raise"]
InWorkflow = Literal["publish", "drop"]
OnLeaseLost = Literal["continue", "terminate"]


def read_field(name: str, value: object, *, where: str, literal_key: bool = False) -> Any:
    """Return the value of the policy field ``name``, parsed: durations as seconds, keys as specifications.

    Raises:
        ConfigurationError: there is no such field, or the value does not suit it. It begins with ``where``.
    """
    if name not in _READERS:
        raise ConfigurationError(f"{where}: unknown field {name!r}; {choices(name, _READERS)}")
    try:
        return parse_key(value, literal=True) if name == "key" and literal_key else _READERS[name](value)
    except ValueError as error:
        raise ConfigurationError(f"{where}: {name} {value!r} {error}") from None


def misfit(name: str, lock: Lock, value: object) -> str | None:
    """Return why the field ``name`` with the parsed ``value`` has no meaning for ``lock``, or ``None``."""
    belongs = _SHARES if name == "limit" and value != 1 else _BELONGS.get(name)
    if belongs is None or belongs(lock):
        return None
    users = [other.name for other in (*LOCKS.values(), RATE) if belongs(other)]
    kind = "a rate" if lock.paced else f"lock {lock.name!r}"
    return f"has no meaning with {kind}; it is for {', '.join(users)}"


def need_period(lock: Lock, values: Mapping[str, Any], *, where: str) -> None:
    """Raise ``ConfigurationError`` if ``lock`` cannot be without a period and ``values`` has none."""
    if lock.periodic and values.get("period") is None:
        raise ConfigurationError(f"{where}: lock {lock.name!r} needs a period, such as period='1h'")


_RUNS: Callable[[Lock], bool] = attrgetter("runs")
_SHARES: Callable[[Lock], bool] = attrgetter("shares")
_BELONGS: Mapping[str, Callable[[Lock], bool]] = MappingProxyType(
    {
        "lock": lambda lock: not lock.paced,
        "rate": attrgetter("paced"),
        "queue_ttl": lambda lock: lock.claims and not lock.periodic,
        "period": attrgetter("periodic"),
        "keep": attrgetter("remembers"),
        "lease": _RUNS,
        "limit": _RUNS,
        "on_conflict": lambda lock: lock.runs or lock.paced,
        "wait_limit": _RUNS,
        "max_deliveries": _RUNS,
        "on_lease_lost": _RUNS,
    }
)


def _one_of(known: Iterable[str]) -> Callable[[object], Any]:
    names = tuple(known)

    def read(value: object) -> Any:
        if value not in names:
            raise ValueError(f"is not one of the choices; {choices(value, names)}")
        return value

    return read


def _maybe(read: Callable[[object], Any]) -> Callable[[object], Any]:
    return lambda value: None if value is None else read(value)


def _scope(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("is no scope: write a word that the tasks sharing the lock have in common")
    return value


def _store(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("is no store: write a name that dedupe_stores has")
    return value


def _limit(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError("is no limit: write a whole number of 1 or more")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("is neither True nor False")
    return value


def _params(value: object) -> tuple[str, ...]:
    names = parse_key(value) if isinstance(value, (list, tuple)) else None
    if not isinstance(names, tuple):
        raise ValueError("is no list of argument names in the order of the task's signature")
    return names


_READERS: Mapping[str, Callable[[object], Any]] = MappingProxyType(
    {
        "lock": _one_of(LOCKS),
        "rate": _maybe(parse_rate),
        "key": parse_key,
        "scope": _maybe(_scope),
        "store": _store,
        "queue_ttl": seconds,
        "lease": seconds,
        "period": _maybe(seconds),
        "keep": _maybe(seconds),
        "limit": _limit,
        "on_duplicate": _one_of(get_args(OnDuplicate)),
        "on_conflict": _maybe(_one_of(get_args(OnConflict))),
        "on_store_error": _maybe(_one_of(get_args(OnStoreError))),
        "in_workflow": _one_of(get_args(InWorkflow)),
        "on_lease_lost": _one_of(get_args(OnLeaseLost)),
        "wait_limit": seconds,
        "max_deliveries": _maybe(_limit),
        "params": _maybe(_params),
        "observe": _flag,
    }
)

FIELDS: Sequence[str] = tuple(_READERS)
"""The names of all fields."""

DURATIONS = frozenset({"queue_ttl", "lease", "period", "keep", "wait_limit"})
"""Those that are in seconds."""
