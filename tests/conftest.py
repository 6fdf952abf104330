"""Fixtures. What they hand out is described where it is defined, in ``tests/harness`` and ``tests/apps``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.apps.assembly import AppUnderTest, variables
from tests.harness.databases import mariadb_database, postgres_database
from tests.harness.ledger import Ledger
from tests.harness.proxies import Proxy
from tests.harness.reaper import Reaper
from tests.harness.servers import ValkeyServer, require_service
from tests.harness.workers import Workers

# The machine may be busy: no example is judged by the time that it takes, or that it takes to make.
settings.register_profile("any", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples in each run of CI: a change is judged by what it does. Elsewhere new ones each time.
settings.register_profile("ci", settings.get_profile("any"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "any")

WORKERS = pytest.StashKey[Workers]()


@pytest.fixture(scope="session")
def reaper() -> Iterator[Reaper]:
    reaper = Reaper()
    yield reaper
    reaper.close()


@pytest.fixture(scope="session")
def shared_valkey(reaper: Reaper) -> Iterator[ValkeyServer]:
    """The server of this run. Ask for ``valkey``, which is empty."""
    server = ValkeyServer(reaper)
    server.start()
    yield server
    server.close()


@pytest.fixture
def valkey(shared_valkey: ValkeyServer) -> ValkeyServer:
    """An empty server, shared with the tests before and after: not to be stopped or configured."""
    shared_valkey.clear()
    return shared_valkey


@pytest.fixture
def start_valkey(reaper: Reaper) -> Iterator[Callable[..., ValkeyServer]]:
    """``start_valkey(maxmemory="3mb")``: a server of the test's own, to be stopped, paused, emptied."""
    started: list[ValkeyServer] = []

    def start(**options: object) -> ValkeyServer:
        server = ValkeyServer(reaper, **options)
        started.append(server)
        server.start()
        return server

    yield start
    for server in started:
        server.close()


@pytest.fixture
def start_proxy() -> Iterator[Callable[[str], Proxy]]:
    """``start_proxy(url)``: a line to that server, ``.url``, which the test can cut, block and stall."""
    started: list[Proxy] = []

    def start(url: str) -> Proxy:
        started.append(Proxy(url))
        return started[-1]

    yield start
    for proxy in started:
        proxy.close()


@pytest.fixture
def rabbitmq_url() -> str:
    return require_service("rabbitmq")


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """A new database, dropped afterwards, as SQLAlchemy names it; ``"db+" + postgres_url`` is a backend."""
    with postgres_database() as url:
        yield url


@pytest.fixture
def mariadb_url() -> Iterator[str]:
    """The same on MariaDB."""
    with mariadb_database() as url:
        yield url


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """What the tasks of the test's apps write to."""
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def make_app(
    valkey: ValkeyServer,
    start_valkey: Callable[..., ValkeyServer],
    start_proxy: Callable[[str], Proxy],
    ledger: Ledger,
) -> Iterator[Callable[..., AppUnderTest]]:
    """``make_app(rules)``: an app with the extension, on an embedded server unless told otherwise.

    ``server`` stands for broker, backend and store at once; ``broker``, ``backend`` and ``url`` for one of
    them. ``conf`` holds Celery's settings. ``setup`` is a function of a module, called in every process with
    the ``AppUnderTest`` before the extension is installed. What else is given is a ``dedupe_`` setting.

    It asks for the makers of servers and lines so that these outlive the apps on them.
    """
    made: list[AppUnderTest] = []

    def make(
        rules: Mapping[str, Any] | None = None,
        *,
        server: ValkeyServer = valkey,
        broker: str | None = None,
        backend: str | None = None,
        conf: Mapping[str, Any] | None = None,
        setup: Callable[[AppUnderTest], None] | None = None,
        install: bool = True,
        **settings: Any,
    ) -> AppUnderTest:
        env = variables(
            rules,
            broker=broker or server.broker_url,
            backend=backend or server.backend_url,
            ledger=ledger,
            conf=conf,
            settings={"url": server.store_url, **settings},
            setup=setup,
            install=install,
        )
        made.append(AppUnderTest(env))
        return made[-1]

    yield make
    for app in made:
        app.close()


@pytest.fixture
def workers(
    request: pytest.FixtureRequest, make_app: Callable[..., AppUnderTest], tmp_path: Path, reaper: Reaper
) -> Iterator[Workers]:
    """``workers(app)``, ``workers.beat(app)``, ``workers.python(app, source)``: killed after the test."""
    workers = Workers(tmp_path, reaper)
    request.node.stash[WORKERS] = workers
    yield workers
    workers.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A test that fails shows what its processes had to say."""
    report = yield
    if report.failed and WORKERS in item.stash:
        report.sections.extend((f"log of {name}", log) for name, log in item.stash[WORKERS].logs())
    return report
