"""What comes back after a wait is the message that was sent, and nothing of it is lost."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Task, chain, chord, group
from celery.canvas import StampingVisitor
from celery.exceptions import TaskRevokedError
from kombu import Connection, Exchange, Queue

from celery_dedupe import duplicate_of
from tests.apps.assembly import AppUnderTest
from tests.apps.families import claims_left, note_events
from tests.harness.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    # Celery's Redis backend stores results by a command that redis-py 8 calls deprecated.
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
]

RULES = {
    "jobs.*": {"lock": "queue_and_run", "key": ["key"], "scope": "shared"},
    "jobs.retries": {"lock": "while_running", "on_conflict": "wait", "key": ["key"], "scope": "shared"},
}
# What a second sending is bound to change, and what is no part of the message.
CHANGED = {"eta", "properties", "dedupe_verdict", "dedupe"}
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
AN_HOUR_ON = datetime.now(timezone.utc) + timedelta(hours=1)


def define_probe(under_test: AppUnderTest) -> None:
    app, ledger = under_test.app, under_test.ledger
    topics = Exchange(f"{under_test.queue}-topics", type="topic")
    app.conf.task_queues = [
        Queue(under_test.queue, Exchange(under_test.queue), routing_key=under_test.queue),
        Queue(f"{under_test.queue}-topics", topics, routing_key="work.#"),
    ]
    app.conf.accept_content = ["json", "pickle", "yaml"]

    def note(task: Task, key: str) -> None:
        fields = {name: value for name, value in vars(task.request).items() if name not in CHANGED}
        fields["headers"] = {n: v for n, v in (fields["headers"] or {}).items() if n not in CHANGED}
        ledger.note("request", key, fields=json.dumps(fields, default=repr, sort_keys=True))

    @app.task(bind=True, shared=False, name="jobs.tells")
    def tells(self: Task, *values: Any, key: str, **more: Any) -> str:
        """Notes its request."""
        note(self, key)
        return key

    @app.task(bind=True, shared=False, name="jobs.tells_later")
    def tells_later(self: Task, key: str) -> str:
        """Notes its request at its second attempt, the first of which has raised the count."""
        if self.request.retries:
            note(self, key)
            return key
        ledger.note("first attempt", key)
        ledger.wait_gate("second attempt")
        raise self.retry(countdown=3)

    @app.task(bind=True, shared=False, name="parents.asks")
    def asks(self: Task, key: str) -> None:
        tells.apply_async(kwargs={"key": key})

    @app.task(bind=True, shared=False, name="parents.gives_way")
    def gives_way(self: Task, key: str) -> None:
        raise self.replace(tells.si(key=key))

    under_test.tasks.__dict__.update(tells=tells, tells_later=tells_later, asks=asks, gives_way=gives_way)
    under_test.tasks.topics = topics.name
    note_events(under_test)


class Stamp(StampingVisitor):
    def on_signature(self, sig: Any, **headers: Any) -> dict[str, Any]:
        return {"tenant": "acme", "stamped_headers": ["tenant"]}


def with_all_options(t: SimpleNamespace, key: str) -> None:
    t.tells.apply_async(
        (1, [2, (3, None)]),
        {"key": key, "more": {"a": 1.5}},
        headers={"trace": "00-abc", "nested": {"x": [1]}},
        priority=4,
        expires=AN_HOUR_ON,
        time_limit=120,
        soft_time_limit=100,
        ignore_result=True,
        shadow="shady",
        link=t.quick.si("linked"),
        link_error=[t.record_error.s(key="told")],
        argsrepr="(hidden)",
        kwargsrepr="{hidden}",
        compression="gzip",
        reply_to="somebody",
    )


def stamped(t: SimpleNamespace, key: str) -> None:
    work = t.tells.s(key=key)
    work.stamp(Stamp())
    work.apply_async()


MESSAGES: dict[str, Callable[[SimpleNamespace, str], Any]] = {
    "all options": with_all_options,
    "a countdown": lambda t, key: t.tells.apply_async(kwargs={"key": key}, countdown=0.2),
    "stamped": stamped,
    "by a topic": lambda t, key: t.tells.apply_async(
        kwargs={"key": key}, queue=t.topics, routing_key="work.hard"
    ),
    "not to be had in JSON": lambda t, key: t.tells.apply_async((1j,), {"key": key}, serializer="pickle"),
    "from a parent": lambda t, key: t.asks.delay(key),
    "head of a chain": lambda t, key: chain(
        t.tells.s(key=key), t.append.s(f"{key}2"), t.append.s(f"{key}3")
    ).on_error(t.record_error.s(key="told"))(),
    "later link of a chain": lambda t, key: chain(
        t.quick.s(f"{key}1"), t.tells.s(key=key), t.append.s(f"{key}3")
    )(),
    "member of a group": lambda t, key: group(t.quick.s(f"{key}1"), t.tells.s(key=key)).apply_async(),
    "header of a chord": lambda t, key: chord(
        [t.quick.s(f"{key}1"), t.tells.s(key=key)], t.gather.s(f"{key}3")
    ).apply_async(),
    "body of a chord": lambda t, key: chord([t.quick.s(f"{key}1")], t.tells.s(key=key)).apply_async(),
    "what replaces a task": lambda t, key: t.gives_way.delay(key),
}


def in_order(fields: str) -> Any:
    """What a task noted, each id by the place where it comes first: two of one build are equal then."""
    names: dict[str, str] = {}
    text = UUID.sub(lambda match: names.setdefault(match[0], f"id{len(names)}"), fields)
    return json.loads(text.replace("KEY-FREE", "KEY").replace("KEY-HELD", "KEY"))


@pytest.fixture
def start(make_app, workers):
    """An app with the probe, and a worker of both its queues."""

    def start() -> AppUnderTest:
        app = make_app(RULES, setup=define_probe)
        queues = f"--queues={app.queue},{app.queue}-topics"
        # A worker that accepts pickle asks for this where the tests run as root.
        workers(app, queues, pool="threads", concurrency=2 * len(MESSAGES), env={"C_FORCE_ROOT": "1"})
        return app

    return start


def refused(ledger: Any) -> Counter[str]:
    return Counter(note["key"] for note in ledger.notes("refused") if note["decision"] == "wait")


def test_a_message_that_has_waited_is_the_message_that_was_sent(start, ledger):
    app = start()
    keys = {name: (f"KEY-FREE {name}", f"KEY-HELD {name}") for name in MESSAGES}
    for _, held in keys.values():
        app.tasks.held.delay(held)
    ledger.wait_for(len(keys), ended=False)

    for name, both in keys.items():
        for key in both:
            MESSAGES[name](app.tasks, key)
    waited_twice = lambda: sum(times >= 2 for times in refused(ledger).values())  # noqa: E731
    wait_until(lambda: waited_twice() == len(keys), 30, lambda: f"{refused(ledger)}")
    ledger.open_gate("gate")

    for name, both in keys.items():
        noted = [wait_until(lambda key=key: ledger.notes("request", key), 15, key) for key in both]
        (free,), (held,) = noted
        assert in_order(held["fields"]) == in_order(free["fields"]), name
    wait_until(lambda: not claims_left(app), 10, lambda: f"{claims_left(app)}")


def test_a_message_that_was_routed_by_a_topic_finds_its_way_back_from_a_forked_process(
    make_app, workers, ledger
):
    """The process that sends it again has declared nothing, and Redis has no exchanges of its own."""
    app = make_app(RULES, setup=define_probe)
    workers(app, f"--queues={app.queue},{app.queue}-topics", concurrency=2, env={"C_FORCE_ROOT": "1"})
    app.tasks.held.delay("KEY")
    ledger.wait_for(1, ended=False)

    MESSAGES["by a topic"](app.tasks, "KEY")
    wait_until(lambda: max(refused(ledger).values(), default=0) >= 2)
    ledger.open_gate("gate")

    wait_until(lambda: ledger.notes("request", "KEY"))


def define_quorum_queue(under_test: AppUnderTest) -> None:
    define_probe(under_test)
    name = under_test.queue
    arguments = {"x-queue-type": "quorum"}
    under_test.app.conf.task_queues = [
        Queue(name, Exchange(name, type="topic"), routing_key=name, queue_arguments=arguments)
    ]


@pytest.fixture
def remove_delays(rabbitmq_url):
    """Celery declares these for quorum queues, the same for all apps of a server."""
    delays = pytest.importorskip("kombu.transport.native_delayed_delivery")
    yield
    with Connection(rabbitmq_url) as connection:
        channel = connection.default_channel
        for name in [delays.level_name(level) for level in range(delays.MAX_NUMBER_OF_BITS_TO_USE)]:
            channel.queue_delete(name)
            channel.exchange_delete(name)
        channel.exchange_delete(delays.CELERY_DELAYED_DELIVERY_EXCHANGE)


@pytest.mark.services
def test_a_wait_is_long_enough_for_the_delayed_delivery_of_quorum_queues(
    make_app, workers, ledger, rabbitmq_url, remove_delays
):
    """RabbitMQ delays whole seconds, and drops a message that comes again with its death in the headers."""
    app = make_app(RULES, setup=define_quorum_queue, broker=rabbitmq_url)
    workers(app, concurrency=2, env={"C_FORCE_ROOT": "1"})
    app.tasks.held.delay("KEY")
    ledger.wait_for(1, ended=False)

    app.tasks.tells.apply_async(kwargs={"key": "KEY"}, headers={"trace": "00-abc"})
    wait_until(lambda: max(refused(ledger).values(), default=0) >= 3, 20)
    ledger.open_gate("gate")

    (note,) = wait_until(lambda: ledger.notes("request", "KEY"), 20)
    assert json.loads(note["fields"])["headers"]["trace"] == "00-abc"


def test_a_retry_that_has_waited_is_still_the_same_retry(start, ledger):
    app = start()
    for key in ("KEY-FREE", "KEY-HELD"):
        app.tasks.tells_later.delay(key)
        wait_until(lambda key=key: ledger.notes("first attempt", key))
    # Another task takes the key between the two attempts.
    app.tasks.held.delay("KEY-HELD")
    wait_until(lambda: refused(ledger))
    ledger.open_gate("second attempt")
    wait_until(lambda: len(refused(ledger)) == 2)
    ledger.open_gate("gate")

    (free,), (held,) = (
        wait_until(lambda key=key: ledger.notes("request", key)) for key in ("KEY-FREE", "KEY-HELD")
    )
    assert json.loads(held["fields"])["retries"] == 1
    assert in_order(held["fields"]) == in_order(free["fields"])


def test_waits_are_not_counted_among_the_retries(start, ledger):
    """Three tasks in one lane, each with all the retries it may have, and none to spare."""
    app = start()
    keys = {app.tasks.retries.delay("lane", 3, countdown=0.1).id: 3 for _ in range(3)}
    keys[app.tasks.retries.delay("lane", 9, countdown=0.1).id] = 9

    ledger.wait_for(16, "lane")
    for task_id in keys:
        assert [run.attempt for run in ledger.runs("lane") if run.task_id == task_id] == [0, 1, 2, 3]
    assert ledger.overlaps("lane") == []


def test_a_message_that_expires_while_it_waits_is_revoked_and_leaves_no_claim(start, ledger):
    app = start()
    app.tasks.held.delay("KEY")
    ledger.wait_for(1, "KEY", ended=False)

    result = app.tasks.quick.apply_async(("KEY",), expires=2)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=20)

    assert sum(refused(ledger).values()) >= 1, "it has waited"
    wait_until(lambda: duplicate_of(app.tasks.quick.delay("KEY")) is None)
    ledger.open_gate("gate")
    ledger.wait_for(2, "KEY")
    wait_until(lambda: not claims_left(app), 10, lambda: f"{claims_left(app)}")
