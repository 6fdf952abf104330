"""The tasks of ``tests.apps.jobs`` once for each way a lock can be told to treat a duplicate.

The tasks of a family share one lock a ``key``, so that any of them can stand in the way of any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from celery import Task

from celery_dedupe import signals
from celery_dedupe.core.locks import LOCKS
from tests.apps.assembly import AppUnderTest
from tests.apps.jobs import define_tasks
from tests.harness.ledger import Ledger


@dataclass(frozen=True)
class Family:
    """One lock with one choice of ``on_conflict`` and ``in_workflow``."""

    lock: str
    on_conflict: str
    in_workflow: str

    @property
    def name(self) -> str:
        return f"{self.lock}-{self.on_conflict}-{self.in_workflow}"

    @property
    def rule(self) -> dict[str, Any]:
        rule: dict[str, Any] = {"lock": self.lock, "key": ["key"], "scope": self.name}
        rule["in_workflow"] = self.in_workflow
        if self.runs:
            rule["on_conflict"] = self.on_conflict
        if self.lock == "until_expired":
            rule["period"] = "8s"
        return rule

    @property
    def runs(self) -> bool:
        """Whether the lock keeps runs apart, so that there can be a conflict at a start."""
        return LOCKS[self.lock].runs


FAMILIES = [
    Family(lock, on_conflict, in_workflow)
    for lock, traits in LOCKS.items()
    for on_conflict in (("skip", "wait", "raise") if traits.runs else ("none",))
    for in_workflow in ("publish", "drop")
]
RULES = {f"{family.name}.*": family.rule for family in FAMILIES}


RAN, REVOKED, FAILED = "ran", "revoked", "failed"


def fate(family: Family) -> str:
    """What becomes of a message that others wait for, whose key another task holds until it ends well."""
    dropped = family.in_workflow == "drop"
    if not family.runs:
        return REVOKED if dropped else RAN
    if family.lock in ("until_finished", "once") and dropped:
        return REVOKED  # At its publish, whatever a start would say.
    if family.on_conflict == "raise":
        return FAILED
    if family.lock == "once" or (family.on_conflict == "skip" and dropped):
        return REVOKED
    return RAN


def define_families(under_test: AppUnderTest) -> None:
    """For ``make_app(setup=...)``: registers ``FAMILY.TASK`` for all, and notes what the extension tells."""
    for family in FAMILIES:
        named = _Named(under_test.app, family.name)
        define_tasks(named, under_test.ledger)  # type: ignore[arg-type]
        _define_more(named, under_test.ledger)
    note_events(under_test)


def note_events(under_test: AppUnderTest) -> None:
    """For ``make_app(setup=...)``: notes ``dropped`` and ``refused``, with the task's id as key."""
    ledger = under_test.ledger

    @signals.publish_dropped.connect_via(under_test.app, weak=False)
    def dropped(app: object, event: signals.PublishDropped) -> None:
        ledger.note("dropped", event.task_id, task=event.task, published=event.observed)

    @signals.run_refused.connect_via(under_test.app, weak=False)
    def refused(app: object, event: signals.RunRefused) -> None:
        ledger.note("refused", event.task_id, task=event.task, decision=event.decision, reason=event.reason)


def tasks_of(under_test: AppUnderTest, family: Family) -> SimpleNamespace:
    """The family's tasks by their short names."""
    prefix = f"{family.name}."
    tasks = under_test.app.tasks
    return SimpleNamespace(
        **{name[len(prefix) :]: task for name, task in tasks.items() if name.startswith(prefix)}
    )


def _define_more(app: Any, ledger: Ledger) -> None:
    @app.task(bind=True, shared=False, name="jobs.holds")
    def holds(self: Task, key: str, ends: str = "well") -> str:
        """Runs until the test opens the gate. Looks less often than ``held``, for a hundred do at once."""
        with ledger.run(self.name, key, self.request.id):
            ledger.wait_gate("gate", timeout=90, interval=0.25)
            if ends == "badly":
                raise ValueError(key)
            return key

    @app.task(bind=True, shared=False, name="jobs.turns")
    def turns(self: Task, key: str, left: list[str]) -> str:
        """Replaces itself (``"replace"``) or retries (``"retry"``) under the same key until none is left."""
        with ledger.run(self.name, key, self.request.id, self.request.retries):
            if not left:
                return key
            if left[0] == "retry":
                raise self.retry(args=(key, left[1:]), kwargs={}, countdown=0)
            raise self.replace(self.s(key, left[1:]))


def release(app: Any) -> None:
    """Lets every holder end."""
    app.ledger.open_gate("gate")
    if not app.env["DEDUPE_BROKER"].startswith("amqp"):
        take_idle(app)


def take_idle(app: Any) -> None:
    """The worker takes from the queue that was left alone."""
    app.app.control.add_consumer(f"{app.queue}-idle", reply=True, limit=1)


def claims_left(app: Any) -> list[str]:
    """Records in which anything is queued or running. What ``until_expired`` claims outlives its task."""
    return [
        f"{key}: {record}"
        for key, record in app.dedupe.guard.store.scan("dedupe:*")
        if (record.queued and "until_expired" not in key) or record.running
    ]


def in_letters(value: Any) -> Any:
    """A result with the last part of each key only."""
    return [in_letters(item) for item in value] if isinstance(value, list) else value.rpartition(":")[2]


class _Named:
    """An app that registers ``jobs.TASK`` under a family's name."""

    def __init__(self, app: Any, family: str) -> None:
        self._app = app
        self._family = family

    def task(self, *, name: str, **options: Any) -> Any:
        return self._app.task(name=f"{self._family}.{name.partition('.')[2]}", **options)
