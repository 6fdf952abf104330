"""A whole app in this process: messages wait in memory, a tracer runs them, the test turns the clock."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, _state
from celery import signals as celery_signals
from celery.app.task import Task
from celery.bin.base import CLIContext
from celery.worker.request import Request
from celery.worker.strategy import proto1_to_proto2
from click.testing import CliRunner, Result
from kombu import pools

from celery_dedupe import Dedupe, signals
from celery_dedupe.cli import dedupe
from celery_dedupe.errors import StoreUnavailable
from celery_dedupe.store.memory import MemoryStore
from celery_dedupe.testing import Clock

EVENTS = (
    signals.publish_dropped,
    signals.run_refused,
    signals.lock_taken,
    signals.lock_released,
    signals.lease_lost,
    signals.ran_unprotected,
)


class TestedStore(MemoryStore):
    """A ``MemoryStore`` that counts the calls, fails where told, and may answer before the answer is lost.

    Attributes:
        calls: the verbs asked so far, in order.
        down: every verb fails.
        failing: verbs that fail.
        mute: verbs that are carried out and then fail, as when the reply is lost.
    """

    __test__ = False

    def __init__(self, clock: Callable[[], int]) -> None:
        super().__init__(clock)
        self.calls: list[str] = []
        self.down = False
        self.failing: set[str] = set()
        self.mute: set[str] = set()

    def _ask(self, verb: str, *args: Any, **named: Any) -> Any:
        self.calls.append(verb)
        if self.down or verb in self.failing:
            raise StoreUnavailable("the store is away")
        reply = getattr(MemoryStore, verb)(self, *args, **named)
        if verb in self.mute:
            raise StoreUnavailable("the reply was lost")
        return reply

    def claim(self, *args: Any, **named: Any) -> Any:
        return self._ask("claim", *args, **named)

    def withdraw(self, *args: Any, **named: Any) -> Any:
        return self._ask("withdraw", *args, **named)

    def begin(self, *args: Any, **named: Any) -> Any:
        return self._ask("begin", *args, **named)

    def renew(self, *args: Any, **named: Any) -> Any:
        return self._ask("renew", *args, **named)

    def finish(self, *args: Any, **named: Any) -> Any:
        return self._ask("finish", *args, **named)

    def held(self) -> dict[str, list[str]]:
        """What the records hold: ``{"queued": [task id], "running": [...], "done": [...]}``."""
        records = [record for _, record in self.scan("*")]
        return {
            "queued": [part.task_id for record in records for part in record.queued],
            "running": [part.task_id for record in records for part in record.running],
            "done": [record.done.task_id for record in records if record.done],
        }


class Consumer:
    """What sends ``task_received`` and ``task_unknown`` in a worker."""

    def __init__(self, app: Celery) -> None:
        self.app = app


NOTHING: dict[str, list[str]] = {"queued": [], "running": [], "done": []}


class LocalApp:
    """A Celery app, its extension, and a worker of one step.

    Attributes:
        app, dedupe, store, clock: the parts.
        sent: headers of every message that was published, in order.
        events: what the extension told, in order.
        ran: what the tasks noted.
    """

    def __init__(self, rules: Any = None, *, install: bool = True, conf: Any = None, **settings: Any) -> None:
        self.clock = Clock()
        self.store = TestedStore(self.clock)
        self.app = Celery(f"unit-{uuid.uuid4().hex}", set_as_current=False, broker="memory://")
        usual = {"result_backend": "cache+memory://", "task_publish_retry": False}
        self.app.conf.update({**usual, "task_default_queue": self.app.main, **(conf or {})})
        self.sent: list[Any] = []
        self.events: list[Any] = []
        self.ran: list[Any] = []
        self._opened: list[Any] = []
        for signal in EVENTS:
            signal.connect(self._note_event, sender=self.app)
        celery_signals.after_task_publish.connect(self._note_publish, weak=False, dispatch_uid=str(id(self)))
        if rules is not None:
            settings["rules"] = rules
        settings.setdefault("client", self.store)
        self.dedupe = Dedupe(self.app, **settings)
        if install:
            self.dedupe.init_app()

    def task(self, body: Callable[..., Any] | None = None, **options: Any) -> Task[Any, Any]:
        """A task ``t`` of one argument, ``value``, which runs ``body``. Its name is ``options["name"]``."""
        name = options.pop("name", "t")

        def run(self_: Any, value: Any = None) -> Any:
            self.ran.append(value)
            return body(self_, value) if body else value

        run.__name__ = name.rpartition(".")[2]
        task: Task[Any, Any] = self.app.task(run, name=name, bind=True, lazy=False, shared=False, **options)
        return task

    def messages(self) -> list[Any]:
        """Takes every message that waits, oldest first. A real broker could carry each of them."""
        found = []
        channel = self._channel()
        while (message := channel.basic_get(self.app.main)) is not None:
            found.append(channel.message_to_python(message))
            json.dumps(found[-1].headers)
        return found

    def waiting(self) -> int:
        """How many messages wait."""
        queue: int = self._channel()._size(self.app.main)
        return queue

    def start(self, message: Any, *, redelivered: bool = False, hostname: str = "w1@unit") -> Request:
        """Runs one message the way a worker does, to its end, and returns the worker's request."""
        request = self.receive(message, redelivered=redelivered, hostname=hostname)
        request.execute()
        return request

    def receive(self, message: Any, *, redelivered: bool = False, hostname: str = "w1@unit") -> Request:
        """What a worker makes of a message."""
        if redelivered:
            message.delivery_info["redelivered"] = True
        body: Any = None
        headers: Any = None
        decoded = False
        if "task" not in message.headers:
            body, headers, decoded, _ = proto1_to_proto2(message, message.payload)
        request = Request(
            message, app=self.app, hostname=hostname, body=body, headers=headers, decoded=decoded
        )
        celery_signals.task_received.send(sender=Consumer(self.app), request=request)
        return request

    def run_next(self, **how: Any) -> Request:
        """Runs the only message that waits."""
        (message,) = self.messages()
        return self.start(message, **how)

    def told(self, kind: type) -> list[Any]:
        """Events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def close(self) -> None:
        self.dedupe.close()
        for signal in EVENTS:
            signal.disconnect(self._note_event, sender=self.app)
        celery_signals.after_task_publish.disconnect(dispatch_uid=str(id(self)))
        for connection in self._opened:
            connection.close()
        if hasattr(self.app.backend, "client"):
            self.app.backend.client.cache.clear()  # Else it is that of all apps in this process.
        self.app.close()
        pools.reset()

    def _channel(self) -> Any:
        if not self._opened:
            self._opened.append(self.app.connection_for_read())
            self.app.amqp.queues[self.app.main](self._opened[0].default_channel).declare()
        return self._opened[0].default_channel

    def _note_event(self, app: Any, event: Any) -> None:
        self.events.append(event)

    def _note_publish(self, headers: Any, routing_key: str, **_: Any) -> None:
        if routing_key == self.app.main:
            self.sent.append(headers)


@pytest.fixture
def local_app(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[..., LocalApp]]:
    """``local_app(rules, **settings)``: makes one, closed after the test.

    The test fails if a receiver of ours has raised, for Celery logs that and goes on.
    """
    made: list[LocalApp] = []

    def make(*args: Any, **named: Any) -> LocalApp:
        made.append(LocalApp(*args, **named))
        return made[-1]

    yield make
    for app in made:
        app.close()
    swallowed = [record.getMessage() for record in caplog.get_records("call") if "Dedupe." in record.message]
    assert not [message for message in swallowed if message.startswith("Signal handler")]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What the extension logs, from INFO up."""
    caplog.set_level(logging.INFO, logger="celery_dedupe")
    return caplog


@pytest.fixture
def only_own_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apps get none of the tasks that earlier tests' apps share with every app of the process."""
    builtin = {add for add in _state._on_app_finalizers if add.__module__ == "celery.app.builtins"}
    monkeypatch.setattr(_state, "_on_app_finalizers", builtin)


@pytest.fixture
def dedupe_command() -> Callable[..., Result]:
    """``dedupe_command(app, "rules", "--json")``: what that prints, and what it ends with.

    Whatever it raises goes through, but for its exit.
    """

    def run(app: Celery, *words: str, **how: Any) -> Result:
        context = CLIContext(app=app, no_color=True, workdir=None)
        result = CliRunner().invoke(dedupe, words, obj=context, prog_name="dedupe", **how)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture
def bench() -> Iterator[Callable[..., Any]]:
    from tests.unit.bench import Bench

    made: list[Any] = []

    def make(*policies: Any, **named: Any) -> Any:
        made.append(Bench(*policies, **named))
        return made[-1]

    yield make
    for each in made:
        each.close()
