"""What the tests of one module share: a server of its own, apps on it, and their workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from celery import Celery

from tests.apps.assembly import AppUnderTest, variables
from tests.apps.jobs import define_tasks
from tests.harness.ledger import Ledger
from tests.harness.reaper import Reaper
from tests.harness.servers import ValkeyServer
from tests.harness.workers import Workers


class Stage:
    """Apps that stay until the last test of a module: no test may close one, for that closes them all.

    Attributes:
        server: broker, result backend and claim store, each in a database of its own.
        workers: starts processes on the apps.
        ledger: what all of their tasks write to.
    """

    def __init__(self, server: ValkeyServer, workers: Workers, ledger: Ledger) -> None:
        self.server = server
        self.workers = workers
        self.ledger = ledger
        self._made: list[AppUnderTest] = []

    def make_app(
        self,
        rules: Mapping[str, Any] | None = None,
        *,
        conf: Mapping[str, Any] | None = None,
        setup: Callable[[AppUnderTest], None] | None = None,
        backend: str | None = None,
        **settings: Any,
    ) -> AppUnderTest:
        """An app with the extension, on a queue of its own. Arguments as of the fixture ``make_app``."""
        return self._keep(
            variables(
                rules,
                broker=self.server.broker_url,
                backend=backend or self.server.backend_url,
                ledger=self.ledger,
                conf=conf,
                settings={"url": self.server.store_url, **settings},
                setup=setup,
            )
        )

    def without_extension(self, app: AppUnderTest) -> AppUnderTest:
        """The same app as a program that does not have the extension."""
        return self._keep({**app.env, "DEDUPE_INSTALL": "0"})

    def close(self) -> None:
        self.workers.end()
        for app in self._made:
            app.close()
        self.server.close()

    def _keep(self, env: Mapping[str, str]) -> AppUnderTest:
        self._made.append(AppUnderTest(env))
        return self._made[-1]


@contextmanager
def on_stage(reaper: Reaper, folder: Path) -> Iterator[Stage]:
    """For a fixture of the scope ``module``, in which nothing asks for ``make_app``."""
    server = ValkeyServer(reaper)
    server.start()
    stage = Stage(server, Workers(folder, reaper), Ledger(folder / "ledger"))
    try:
        yield stage
    except BaseException:
        # What goes wrong before the first test has no report that shows the logs.
        for name, log in stage.workers.logs():
            print(f"log of {name}\n{log}")  # noqa: T201
        raise
    finally:
        stage.close()


def close(app: Celery) -> None:
    """Closes an app that a test has made by itself; the connections to the broker are shared, and stay."""
    app.dedupe.close()
    app.backend.result_consumer.stop()
    app.backend.on_result_fulfilled = lambda result: None  # A result may outlive its app.
    app.backend.client.close()
    app.close()


def define_variants(under_test: AppUnderTest, names: Any) -> None:
    """Registers every task of ``tests.apps.jobs`` once for each name, as ``NAME.TASK``."""
    for name in names:
        define_tasks(under_test.app, under_test.ledger, name)


def variant(under_test: AppUnderTest, name: str) -> SimpleNamespace:
    """The tasks ``NAME.TASK`` by their short names."""
    prefix = f"{name}."
    tasks = under_test.app.tasks
    return SimpleNamespace(
        **{name[len(prefix) :]: task for name, task in tasks.items() if name.startswith(prefix)}
    )
