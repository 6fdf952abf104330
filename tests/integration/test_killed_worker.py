"""The guide's killed worker: its effect is out, its acknowledgement is not, and the broker delivers again."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any

import pytest
from celery import Task
from celery.signals import task_postrun

from celery_dedupe import duplicate_of
from celery_dedupe.tables import claims, create_tables
from tests.apps.assembly import AppUnderTest
from tests.apps.families import note_events
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

LEASE = 2
ORDER = "order 7"
RULES = {"billing.*": {"lock": "once", "key": ["order"], "lease": LEASE, "keep": "1d"}}
# Where the process is when it is killed, from early to late.
BEFORE_EFFECT, STORED, TOLD = "before the effect", "its success is stored", "its success is told"


def define(under_test: AppUnderTest) -> None:
    """``billing.charge`` has its effect once its gate is open, and then passes the stations above."""
    ledger = under_test.ledger

    class Charging(Task):
        def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
            ledger.note("station", STORED)
            ledger.wait_gate(STORED)

    @under_test.app.task(
        name="billing.charge",
        base=Charging,
        bind=True,
        shared=False,
        acks_late=True,
        reject_on_worker_lost=True,
    )
    def charge(self: Any, order: str) -> str:
        with ledger.run(self.name, order, self.request.id):
            ledger.note("station", BEFORE_EFFECT)
            ledger.wait_gate(BEFORE_EFFECT)
            ledger.note("effect", order)
            return f"charged {order}"

    @under_test.app.task(name="billing.refused", bind=True, shared=False, acks_late=True)
    def refused(self: Any, order: str) -> str:
        with ledger.run(self.name, order, self.request.id):
            if len(ledger.runs(order)) == 1:
                raise ConnectionError("the bank does not answer")
            ledger.note("effect", order)
            return f"charged {order}"

    note_events(under_test)

    @task_postrun.connect(sender=charge, weak=False)  # after the extension, which is the first to hear of it
    def told(state: str | None = None, **_: Any) -> None:
        if state == "SUCCESS":
            ledger.note("station", TOLD)


@dataclass
class Billing:
    """The app on one broker, and how that broker is made to deliver again."""

    under_test: AppUnderTest
    ledger: Any

    @property
    def charge(self) -> Any:
        return self.under_test.app.tasks["billing.charge"]

    def redeliver(self) -> None:
        """RabbitMQ does when a connection ends; workers on Redis do now and then, once the time is over."""
        with self.under_test.app.connection_for_read() as connection:
            if connection.transport.driver_type == "redis":
                connection.default_channel.qos.restore_visible(num=100, interval=1)

    def delivered_again(self, task_id: str) -> bool:
        self.redeliver()
        return bool(self.ledger.notes("refused", task_id)) or len(self.ledger.runs(ORDER)) > 1


@pytest.fixture(
    params=[
        "redis",
        pytest.param("rabbitmq", marks=pytest.mark.services),
        pytest.param("redis, claims in postgres", marks=pytest.mark.services),
    ]
)
def billing(request, make_app, ledger):
    rules, options = RULES, {}
    transport = {"visibility_timeout": LEASE, "unacked_mutex_expire": 2}
    conf = {"broker_transport_options": transport}
    if request.param == "rabbitmq":
        options, conf = {"broker": request.getfixturevalue("rabbitmq_url")}, {}
    if "postgres" in request.param:
        options = {"stores": {"ledger": f"db+{request.getfixturevalue('postgres_url')}"}}
        create_tables(options["stores"]["ledger"], claims)
        rules = {"billing.*": {**RULES["billing.*"], "store": "ledger"}}
    return Billing(make_app(rules, setup=define, conf=conf, **options), ledger)


@pytest.mark.parametrize("station", [BEFORE_EFFECT, STORED, TOLD])
def test_a_killed_worker_has_its_effect_once(billing, workers, ledger, station):
    first = workers(billing.under_test)
    result = billing.charge.delay(ORDER)
    wait_until(lambda: ledger.notes("station", BEFORE_EFFECT))
    os.kill(first.pid, signal.SIGSTOP)  # the parent, which would acknowledge
    if station != BEFORE_EFFECT:
        ledger.open_gate(BEFORE_EFFECT)
    if station == TOLD:
        ledger.open_gate(STORED)
    wait_until(lambda: ledger.notes("station", station))
    first.kill()
    ledger.open_gate(BEFORE_EFFECT)
    ledger.open_gate(STORED)

    second = workers(billing.under_test)

    wait_until(lambda: billing.delivered_again(result.id), 40, lambda: str(ledger))
    assert result.get(timeout=20) == f"charged {ORDER}"

    def remembered() -> bool:
        """Never accepted again; known as done when the lease of a run that could not tell is over."""
        duplicate = duplicate_of(billing.charge.delay(ORDER))
        assert duplicate.task_id == result.id
        return duplicate.state == "done"

    wait_until(remembered, 10)
    second.stop()  # what it had taken is done
    assert len(ledger.notes("effect", ORDER)) == 1
    assert len(ledger.runs(ORDER)) == (2 if station == BEFORE_EFFECT else 1)


def test_a_failure_takes_the_claim_back(billing, workers, ledger):
    workers(billing.under_test)
    refused = billing.under_test.app.tasks["billing.refused"]
    with pytest.raises(ConnectionError):
        refused.delay(ORDER).get(timeout=20)

    again = wait_until(lambda: duplicate_of(found := refused.delay(ORDER)) is None and found, 10)

    assert again.get(timeout=20) == f"charged {ORDER}"
    assert duplicate_of(refused.delay(ORDER)).task_id == again.id
    assert len(ledger.notes("effect", ORDER)) == 1
