"""Whatever is wrong with a database, a verb says ``StoreUnavailable``, soon, and works again afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import make_url

from celery_dedupe.core.asks import Caller
from celery_dedupe.store.connect import open_store
from celery_dedupe.store.sql import SqlStore
from tests.contract.asks import claim, queued_ids
from tests.contract.conftest import PATIENT, Keys
from tests.contract.test_concurrency import at_once
from tests.contract.test_outage import VERBS, fails, took
from tests.harness.proxies import Proxy

HANG = 60.0  # seconds: a bound that only a hang meets
pytestmark = pytest.mark.services


@contextmanager
def opened(url: str, options: Mapping[str, Any] | None = None) -> Iterator[SqlStore]:
    with closing(open_store(url, options or {})) as store:
        assert isinstance(store, SqlStore)
        yield store


@pytest.fixture(params=["postgres", "mariadb"])
def server_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_store_url")
    return url


@pytest.fixture
def proxy(server_url: str, start_proxy: Callable[[str], Proxy]) -> Proxy:
    return start_proxy(server_url)


def login(url: str, **parts: Any) -> str:
    return make_url(url).set(**parts).render_as_string(hide_password=False)


@pytest.mark.parametrize("verb", VERBS)
def test_nobody_listens(proxy: Proxy, keys: Keys, verb: str) -> None:
    proxy.refuse()
    with opened(login(proxy.url, password="hidden")) as store:
        message = fails(store, keys, verb)
    assert "hidden" not in message
    assert message.startswith("the claim store cannot be used: ")


def test_a_login_that_is_refused(server_url: str, keys: Keys) -> None:
    with opened(login(server_url, username="nobody", password="hidden")) as store:
        message = fails(store, keys)
    assert "nobody" in message
    assert "hidden" not in message


@pytest.mark.parametrize("verb", VERBS)
def test_a_black_hole_ends_with_the_timeout(proxy: Proxy, keys: Keys, verb: str) -> None:
    for pooled in (True, False):
        with opened(proxy.url, {"timeout": 0.5}) as store:
            if pooled:
                store.clock()
            proxy.stall()
            assert took(lambda: fails(store, keys, verb)) < HANG
            proxy.restore()
            proxy.cut()
            VERBS[verb](store, keys("after"))


def test_a_lost_connection_of_the_pool_is_not_noticed(proxy: Proxy, keys: Keys) -> None:
    with opened(proxy.url, PATIENT) as store:
        for verb, call in VERBS.items():
            store.clock()
            proxy.cut()
            assert call(store, keys()) is not NotImplemented, verb
        for number in range(5):
            proxy.cut()
            assert store.claim([claim(keys(str(number)))], Caller("t1")) is None


def test_an_outage_and_its_end(proxy: Proxy, keys: Keys) -> None:
    with opened(proxy.url, PATIENT) as store:
        store.claim([claim(keys())], Caller("t1"))
        proxy.refuse()
        fails(store, keys)
        fails(store, keys, "renew")
        proxy.restore()
        assert queued_ids(store.read(keys())) == ["t1"]


def test_a_database_that_takes_no_writes(postgres_store_url: str, keys: Keys) -> None:
    read_only = "-c default_transaction_read_only=on"
    for url, options in (
        (f"{postgres_store_url}?options={quote(read_only)}", {}),
        (postgres_store_url, {"connect_args": {"options": read_only}}),
    ):
        with opened(url, options) as store:
            assert "read-only" in fails(store, keys)
            assert store.facts().writable is False
    with opened(postgres_store_url) as store:
        assert store.facts().writable is True


@contextmanager
def stuck(url: str, key: str, timeout: float) -> Iterator[None]:
    """A process that was stopped in the middle of a verb: it holds a row and says nothing."""
    with opened(url, {"timeout": timeout}) as store, store._engine.connect() as link:
        store._rows.lock(link, [key])
        yield
        link.invalidate()


def test_who_waits_for_a_stuck_process_is_told_in_time(database_url: str, keys: Keys) -> None:
    with stuck(database_url, keys(), HANG), opened(database_url, {"timeout": 0.5}) as store:
        assert took(lambda: fails(store, keys)) < HANG
        if store._engine.dialect.name != "sqlite":
            assert store.claim([claim(keys("b"))], Caller("t1")) is None, "other rows are free"
    with opened(database_url) as store:
        assert store.claim([claim(keys())], Caller("t1")) is None


def test_a_stuck_process_is_put_out_by_the_server(server_url: str, keys: Keys) -> None:
    with stuck(server_url, keys(), 0.5), opened(server_url, {"timeout": HANG}) as store:
        assert store.claim([claim(keys())], Caller("t1")) is None


def test_more_threads_than_connections(database_url: str, keys: Keys) -> None:
    few = {"pool_size": 1, "max_overflow": 0}
    with opened(database_url, {**PATIENT, **few}) as store:
        names = [keys(str(number)) for number in range(8)]
        assert at_once(lambda number: store.claim([claim(names[number])], Caller("t1")), 8) == [None] * 8
    with opened(database_url, {"timeout": 0.2, **few}) as store, store._engine.connect():
        assert "QueuePool" in fails(store, keys)
