"""The apps that are measured side by side: plain Celery, this project, the four nearest libraries."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import redis
from celery import Celery

from tests.harness.servers import BACKEND, BROKER, STORE

LIBRARIES = ("celery-once", "celery-singleton", "celery-heimdall", "celery-once-task")
INSTALLED = tuple(name for name in LIBRARIES if find_spec(name.replace("-", "_")))
TASK = "reports.make"
LAST = "last.of.a.batch"  # no contender locks it; what it leaves in the broker's database says that it ran
DEFAULT = {"reports.*": "queue_and_run"}
THREE = {
    "reports.*": [
        {"lock": "until_started", "key": ["customer"]},
        {"lock": "while_running", "key": ["year"], "limit": 4},
        "queue_and_run",
    ]
}


def make_app(
    kind: str, server: str, rules: dict[str, Any] | None = None, *, results: bool = True, queue: str = ""
) -> Celery:
    """An app with a task that does nothing, ``app.tasks[TASK]``.

    Arguments:
        kind: ``"plain"``, ``"ours"``, or one of ``LIBRARIES`` with its defaults, where these do not wait.
        server: ``redis://host:port``; broker, results and locks have a database each.
        rules: of this project; the default lock unless given.
        results: whether Celery keeps them, there.
        queue: the only one; the kind's own unless given.
    """
    backend = f"{server}/{BACKEND}" if results else None
    app = Celery(kind, broker=f"{server}/{BROKER}", backend=backend)
    app.conf.update(task_default_queue=queue or kind, broker_connection_retry_on_startup=True)
    options = _library(kind, app, f"{server}/{STORE}") if kind in LIBRARIES else {}

    @app.task(name=TASK, shared=False, **options)
    def make(customer: int, year: str, draft: bool = False) -> None: ...

    @app.task(name=LAST, shared=False, ignore_result=True)
    def last() -> None:
        with redis.Redis.from_url(f"{server}/{BROKER}") as client:
            client.rpush(f"{LAST}.{kind}", 1)

    if kind == "ours":
        from celery_dedupe import Dedupe

        Dedupe(app, url=f"{server}/{STORE}", rules=DEFAULT if rules is None else rules).init_app()
    app.finalize()
    return app


def _library(kind: str, app: Celery, store: str) -> dict[str, Any]:
    if kind == "celery-once":
        from celery_once import QueueOnce

        app.conf.ONCE = {"backend": "celery_once.backends.Redis", "settings": {"url": store}}
        return {"base": QueueOnce, "once": {"graceful": True}}
    if kind == "celery-singleton":
        from celery_singleton import Singleton

        app.conf.singleton_backend_url = store
        return {"base": Singleton, "lock_expiry": 3600}
    if kind == "celery-heimdall":
        from celery_heimdall import HeimdallTask

        # By default a duplicate waits for one second, in the hope that the lock comes free.
        return {"base": HeimdallTask, "heimdall": {"unique": True, "unique_lock_blocking": False}}
    from celery_once_task import OnceTask, configure

    configure(redis_url=store)
    return {"base": OnceTask}
