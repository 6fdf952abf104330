"""The terms of one lock, or of a rate: the :class:`Policy` that a rule comes to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from celery_dedupe.core.durations import Duration
from celery_dedupe.core.fields import InWorkflow, OnDuplicate, OnLeaseLost, misfit, need_period, read_field
from celery_dedupe.core.keyspecs import KeySource, KeySpec
from celery_dedupe.core.locks import Lock, LockName, OnConflict, OnStoreError, kind_of
from celery_dedupe.core.places import DEFAULT
from celery_dedupe.core.rates import RateSource, RateSpec
from celery_dedupe.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Policy:
    """One lock on a task, or one rate, with every field set.

    The constructor takes what a rule's dict takes: durations may be seconds, a ``timedelta`` or a text such
    as ``"2h"``. The attributes hold seconds, and the lock's own ``on_conflict`` and ``on_store_error`` where
    ``None`` was given.

    Attributes:
        lock: the kind of lock, see :data:`LOCKS`; ``None`` where there is a rate.
        rate: at most so many starts in any window of time, or the function that says so; ``None`` for a lock.
        key: which arguments make two calls the same; ``None`` means all of them, ``()`` none.
        scope: the word that tasks sharing the lock have in common; ``None`` means the task's own name.
        store: the name of the store that the lock lives in.
        queue_ttl: how long a queued claim lives, in seconds, beyond the time to ``eta``.
        lease: how long a running slot lives unless renewed, in seconds.
        period: seconds between accepted publishes; only with ``until_expired``, which needs it.
        keep: seconds that ``once`` remembers a success; ``None`` is for ever.
        limit: how many may run at once.
        on_duplicate: what the caller of a refused publish gets.
        on_conflict: what happens to a run that finds the lock taken.
        on_store_error: go on unprotected, or refuse, while the store cannot be reached.
        in_workflow: publish a duplicate that carries a continuation, or drop it all the same.
        on_lease_lost: what happens to a run whose lease is lost.
        wait_limit: for how long a run waits for the lock before it is skipped, in seconds.
        max_deliveries: how often one message may start without coming to an end; ``None`` for any number.
        params: the task's argument names in order, for programs that do not have the task.
        observe: claim and report, refuse and delay nothing.
        part: tells two policies of one list apart that would make the same key; set when a list is parsed.

    Raises:
        ConfigurationError: a value does not suit its field, or a field does not suit the lock.
    """

    lock: LockName | None
    rate: RateSpec
    key: KeySpec
    scope: str | None
    store: str
    queue_ttl: float
    lease: float
    period: float | None
    keep: float | None
    limit: int
    on_duplicate: OnDuplicate
    on_conflict: OnConflict
    on_store_error: OnStoreError
    in_workflow: InWorkflow
    on_lease_lost: OnLeaseLost
    wait_limit: float
    max_deliveries: int | None
    params: tuple[str, ...] | None
    observe: bool
    part: str

    def __init__(
        self,
        *,
        lock: LockName = "queue_and_run",
        rate: RateSource = None,
        key: KeySource = None,
        scope: str | None = None,
        store: str = DEFAULT,
        queue_ttl: Duration = "1h",
        lease: Duration = "60s",
        period: Duration | None = None,
        keep: Duration | None = "7d",
        limit: int = 1,
        on_duplicate: OnDuplicate = "existing",
        on_conflict: OnConflict | None = None,
        on_store_error: OnStoreError | None = None,
        in_workflow: InWorkflow = "publish",
        on_lease_lost: OnLeaseLost = "continue",
        wait_limit: Duration = "1h",
        max_deliveries: int | None = None,
        params: tuple[str, ...] | list[str] | None = None,
        observe: bool = False,
        part: str = "",
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "part")}
        where = "Policy(...)"
        if rate is not None and given["lock"] is None:
            given["lock"] = "queue_and_run"  # ``None`` is what a policy with a rate says of itself.
        values = {name: read_field(name, value, where=where) for name, value in given.items()}
        traits = kind_of(values)
        need_period(traits, values, where=where)
        for name in _OF_THE_LOCK:
            values[name] = values[name] or getattr(traits, name)
        for name, value in values.items():
            untouched = value in (_DEFAULTS[name], getattr(traits, name, None))
            if not untouched and (reason := misfit(name, traits, value)):
                raise ConfigurationError(f"{where}: {name} {given[name]!r} {reason}")
            object.__setattr__(self, name, value)
        if traits.paced:
            object.__setattr__(self, "lock", None)
        object.__setattr__(self, "part", part)

    @property
    def traits(self) -> Lock:
        """What the lock of this policy does, or its rate."""
        return kind_of({"lock": self.lock, "rate": self.rate})


_OF_THE_LOCK = ("on_conflict", "on_store_error")
_DEFAULTS = {
    name: read_field(name, value, where="default")
    for name, value in (Policy.__init__.__kwdefaults__ or {}).items()
    if name != "part"
}


def written(policy: Policy) -> dict[str, Any]:
    """Return what has to be given to get ``policy``: whatever is not as it would be anyway."""
    usual = _DEFAULTS | {name: getattr(policy.traits, name) for name in _OF_THE_LOCK}
    values = {name: getattr(policy, name) for name in usual}
    return {name: value for name, value in values.items() if value != usual[name]}
