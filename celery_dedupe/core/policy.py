"""What a rule asks for: a lock, the key it is taken under, and what happens to duplicates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from celery_dedupe.core.durations import Duration
from celery_dedupe.core.fields import InWorkflow, OnDuplicate, OnLeaseLost, misfit, read_field
from celery_dedupe.core.keyspecs import KeySource, KeySpec
from celery_dedupe.core.locks import LOCKS, Lock, LockName, OnConflict, OnStoreError
from celery_dedupe.errors import ConfigurationError

__all__ = ["LOCKS", "Lock", "Policy"]


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Policy:
    """One lock on a task, with every field set.

    The constructor takes what a rule's dict takes: durations may be seconds, a ``timedelta`` or a text such as
    ``"2h"``. The attributes hold them as seconds, and ``on_conflict`` and ``on_store_error`` as the lock's own
    choice where ``None`` was given.

    Attributes:
        lock: the kind of lock, see :data:`LOCKS`.
        key: which arguments make two calls the same; ``None`` means all of them, ``()`` none.
        scope: the word that tasks sharing the lock have in common; ``None`` means the task's own name.
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
        params: the task's argument names in order, for programs that do not have the task.
        part: tells two policies of one list apart that would make the same key; set when a list is parsed.

    Raises:
        ConfigurationError: a value does not suit its field, or a field does not suit the lock.
    """

    lock: LockName
    key: KeySpec
    scope: str | None
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
    params: tuple[str, ...] | None
    part: str

    def __init__(
        self,
        *,
        lock: LockName = "queue_and_run",
        key: KeySource = None,
        scope: str | None = None,
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
        params: tuple[str, ...] | list[str] | None = None,
        part: str = "",
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "part")}
        where = "Policy(...)"
        values = {name: read_field(name, value, where=where) for name, value in given.items()}
        traits = LOCKS[values["lock"]]
        if traits.periodic and values["period"] is None:
            raise ConfigurationError(f"{where}: lock {traits.name!r} needs a period, such as period='1h'")
        values["on_conflict"] = values["on_conflict"] or traits.on_conflict
        values["on_store_error"] = values["on_store_error"] or traits.on_store_error
        for name, value in values.items():
            reason = misfit(name, traits, value)
            if reason and value != _unset(name, traits):
                raise ConfigurationError(f"{where}: {name} {given[name]!r} {reason}")
            object.__setattr__(self, name, value)
        object.__setattr__(self, "part", part)

    @property
    def traits(self) -> Lock:
        """What the lock of this policy does."""
        return LOCKS[self.lock]


def _unset(name: str, lock: Lock) -> Any:
    """Return what the field holds where nothing was written."""
    default = (Policy.__init__.__kwdefaults__ or {})[name]
    value = read_field(name, default, where="default")
    if name in ("on_conflict", "on_store_error"):
        return getattr(lock, name)
    return value
