"""Builds one and the same app from the same few variables, in the test and in each process that it starts."""

from __future__ import annotations

import importlib
import json
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from celery import Celery
from kombu import Connection, pools

from tests.apps.jobs import define_tasks
from tests.harness.ledger import Ledger
from tests.harness.servers import service_url


class AppUnderTest:
    """An app, its tasks, and what a process must know to build the same.

    Attributes:
        app, tasks: the Celery app and ``tasks.NAME`` for each task of ``tests.apps.jobs``.
        ledger: what the tasks write to.
        dedupe: the installed extension, or ``None``.
        queue: the only queue its tasks are sent to, and its workers take from; no other app has it.
        module: the module that builds it in another process.
        env: the variables that module reads.
    """

    module = "tests.apps.basic"

    def __init__(self, env: Mapping[str, str], *, as_current: bool = False) -> None:
        self.env = dict(env)
        self.queue = env["DEDUPE_QUEUE"]
        self.ledger = Ledger(Path(env["DEDUPE_LEDGER"]))
        self.app = Celery(self.queue, set_as_current=as_current, broker=env["DEDUPE_BROKER"])
        self.app.conf.update(
            result_backend=env["DEDUPE_BACKEND"],
            broker_connection_retry_on_startup=True,
            # Names of its own for all that a broker shares, so that tests that run at once do not meet there.
            task_default_queue=self.queue,
            control_exchange=self.queue,
            event_exchange=f"{self.queue}.events",
            event_queue_prefix=f"{self.queue}.events",
        )
        self.app.conf.update(json.loads(env["DEDUPE_CONF"]))
        self.app.conf.update(json.loads(env["DEDUPE_SETTINGS"]))
        if rules := json.loads(env["DEDUPE_RULES"]):
            self.app.conf.dedupe_rules = rules
        self.tasks: SimpleNamespace = define_tasks(self.app, self.ledger)
        if setup := env["DEDUPE_SETUP"]:
            module, _, name = setup.partition(":")
            getattr(importlib.import_module(module), name)(self)
        self.dedupe = self._install() if env["DEDUPE_INSTALL"] == "1" else None

    def close(self) -> None:
        """Takes the extension out, closes its connections, removes from RabbitMQ what it declared there."""
        if self.dedupe is not None:
            self.dedupe.close()
        if self.env["DEDUPE_BROKER"].startswith("amqp"):
            self._remove_queues()
        backend = self.app.backend
        if hasattr(backend, "result_consumer"):
            # That of rpc:// cannot be stopped unless it has been started.
            if getattr(backend.result_consumer, "_connection", self) is not None:
                backend.result_consumer.stop()
            # A result that outlives its app, in a traceback for one, has nothing left to unsubscribe from.
            backend.on_result_fulfilled = lambda result: None
        if hasattr(backend, "client"):
            backend.client.close()
        self.app.close()
        pools.reset()

    def _install(self) -> Any:
        from celery_dedupe import Dedupe

        return Dedupe(self.app).init_app()

    def _remove_queues(self) -> None:
        # Not by the app's own broker URL, which may be a line that the test has cut.
        with Connection(service_url("rabbitmq")) as connection:
            channel = connection.default_channel
            channel.queue_delete(self.queue)
            for name in ("{}", "{}.pidbox", "reply.{}.pidbox", "{}.events"):
                channel.exchange_delete(name.format(self.queue))


def variables(
    rules: Mapping[str, Any] | None,
    *,
    broker: str,
    backend: str,
    ledger: Ledger,
    conf: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    setup: Callable[[AppUnderTest], None] | None = None,
    install: bool = True,
) -> dict[str, str]:
    """What describes an app to ``AppUnderTest``. All but ``setup``, a function of a module, must be JSON."""
    named = {f"dedupe_{name}": value for name, value in (settings or {}).items()}
    return {
        "DEDUPE_BROKER": broker,
        "DEDUPE_BACKEND": backend,
        "DEDUPE_QUEUE": f"dedupe-{uuid.uuid4().hex[:12]}",
        "DEDUPE_LEDGER": str(ledger.folder),
        "DEDUPE_RULES": json.dumps(rules or {}),
        "DEDUPE_SETTINGS": json.dumps(named),
        "DEDUPE_CONF": json.dumps(conf or {}),
        "DEDUPE_SETUP": f"{setup.__module__}:{setup.__qualname__}" if setup else "",
        "DEDUPE_INSTALL": "1" if install else "0",
    }
