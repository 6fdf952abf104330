"""The public names as a user's own type checker sees them. Checked by ``make lint``, never run.

Each ``type: ignore`` is a mistake that has to be found: mypy complains of those that are not needed.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

from celery import Celery
from typing_extensions import assert_type

import celery_dedupe
from celery_dedupe import (
    ConfigurationError,
    Dedupe,
    DedupeError,
    Duplicate,
    DuplicateTask,
    Lease,
    LeaseLost,
    Policy,
    StoreUnavailable,
    UnkeyableArguments,
    current_lease,
    duplicate_of,
    only_after,
    signals,
)
from celery_dedupe.core.counts import Counted

app = Celery("proj")

# Attaching it

assert_type(Dedupe(app).init_app(), Dedupe)
assert_type(Dedupe().init_app(app), Dedupe)
assert_type(Dedupe(app, url="redis://localhost", rules={"t": "once"}).init_app().close(), None)
Dedupe("proj")  # type: ignore[arg-type]

# What a publish says


def publish(result: object) -> str | None:
    found = duplicate_of(result)
    assert_type(found, Duplicate | None)
    if found is None:
        return None
    assert_type(found.task_id, str)
    assert_type(found.task, str)
    assert_type(found.state, str)
    assert_type(found.expires_in, float | None)
    assert_type(found.key, str)
    found.key = "another"  # type: ignore[misc]
    return found.task_id


# What a running task sees


def body() -> None:
    lease = current_lease()
    assert_type(lease, Lease | None)
    if lease is not None:
        assert_type(lease.key, str)
        assert_type(lease.fence, int)
        assert_type(lease.expires_in, float)
        assert_type(lease.lost, bool)
        assert_type(lease.ensure(), None)
        lease.expires_in = 5.0  # type: ignore[misc]


# Periods

assert_type(only_after("digest", "1h"), bool)
assert_type(only_after("digest", timedelta(hours=1), on_store_error="refuse"), bool)
only_after("digest")  # type: ignore[call-arg]
only_after("digest", 5, on_store_error="maybe")  # type: ignore[arg-type]

# Policies

policy = Policy(lock="until_expired", key=["account_id"], period="1h", on_duplicate="raise")
assert_type(policy.period, float | None)
assert_type(policy.queue_ttl, float)
assert_type(policy.lease, float)
assert_type(policy.keep, float | None)
assert_type(policy.limit, int)
assert_type(policy.scope, str | None)
assert_type(
    policy.lock,
    Literal["until_started", "while_running", "queue_and_run", "until_finished", "until_expired", "once"]
    | None,
)
assert_type(policy.on_duplicate, Literal["existing", "none", "raise"])
assert_type(policy.on_conflict, Literal["skip", "wait", "raise"])
assert_type(policy.on_store_error, Literal["allow", "refuse"])
assert_type(policy.in_workflow, Literal["publish", "drop"])
assert_type(policy.on_lease_lost, Literal["continue", "terminate"])
assert_type(policy.wait_limit, float)
policy.limit = 2  # type: ignore[misc]

Policy(lease=timedelta(minutes=2), queue_ttl=90, wait_limit="15m", keep=None)
Policy(key="charge:{order_id}")
Policy(rate="10/m")
Policy(rate=(10, timedelta(minutes=1)))
Policy(rate=lambda args: (10, 60))
Policy(rate=10)  # type: ignore[arg-type]
Policy(key=lambda order_id, **_: order_id)
Policy(key=())
Policy(lock="until_finised")  # type: ignore[arg-type]
Policy(on_duplicate="ignore")  # type: ignore[arg-type]
Policy(colour="red")  # type: ignore[call-arg]
Policy("once")  # type: ignore[call-arg]

# Events


def on_dropped(app: Any, event: signals.PublishDropped) -> None:
    assert_type(event.task, str)
    assert_type(event.task_id, str)
    assert_type(event.lock, str)
    assert_type(event.duplicate, Duplicate)
    assert_type(event.observed, bool)
    event.task = "another"  # type: ignore[misc]


def on_refused(app: Any, event: signals.RunRefused) -> None:
    assert_type(event.decision, Literal["skip", "raise", "wait", "quiet", "poison"])
    assert_type(event.duplicate, Duplicate | None)
    assert_type(event.delay, float)
    assert_type(event.reason, str)
    assert_type(event.observed, bool)


def on_taken(app: Any, event: signals.LockTaken) -> None:
    assert_type(event.stage, Literal["queued", "running"])
    assert_type(event.keys, tuple[str, ...])
    assert_type(event.fences, tuple[int, ...])


def on_released(app: Any, event: signals.LockReleased) -> None:
    assert_type(event.keys, tuple[str, ...])
    assert_type(event.outcome, str)


def on_lost(app: Any, event: signals.LostLease) -> None:
    assert_type(event.key, str)
    assert_type(event.fence, int)


def on_unprotected(app: Any, event: signals.RanUnprotected) -> None:
    assert_type(event.stage, Literal["publish", "start"])
    assert_type(event.reason, str)


def on_verdict(app: Any, event: signals.VerdictReached) -> None:
    assert_type(event.verdict, Counted)
    assert_type(event.seconds, float | None)


signals.publish_dropped.connect(on_dropped)
signals.run_refused.connect(on_refused, sender=app)
signals.lock_taken.connect(on_taken)
signals.lock_released.connect(on_released)
signals.lease_lost.connect(on_lost)
signals.ran_unprotected.connect(on_unprotected)
signals.verdict_reached.connect(on_verdict)

# Errors


def errors() -> None:
    try:
        publish(app.send_task("t"))
    except DuplicateTask as error:
        assert_type(error.task, str)
        assert_type(error.task_id, str)
        assert_type(error.state, str)
        assert_type(error.expires_in, float | None)
        assert_type(error.key, str)
    except (ConfigurationError, UnkeyableArguments, StoreUnavailable, LeaseLost) as error:
        a_dedupe_error: DedupeError = error
        assert_type(str(a_dedupe_error), str)


unkeyable: TypeError = UnkeyableArguments()

# What is not public

hidden = celery_dedupe.Heartbeat  # type: ignore[attr-defined]
