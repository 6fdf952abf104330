"""What every store promises those who count, and those who observe."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from celery_dedupe.core.counts import HOUR, KEPT, hours
from celery_dedupe.store.memory import MemoryStore
from celery_dedupe.store.protocol import Store
from celery_dedupe.store.redis import RedisStore
from tests.contract.asks import MINUTE, SHORT
from tests.contract.conftest import Client, Keys, store_on
from tests.harness.waiting import wait_until

ODD = ("a b", "dropped x", "-", "", "é\n\udc80", "a\x00b", "%2D")


@pytest.fixture(autouse=True)
def clean(request: pytest.FixtureRequest, keys: Keys) -> Iterator[None]:
    """What is no claim is not evicted, and one of the servers is the machine's own."""
    names = {"store", "client"} & set(request.fixturenames)
    found = [request.getfixturevalue(name) for name in names]
    yield
    for one in found:
        client = getattr(one, "_client", one)
        if hasattr(client, "scan_iter"):
            for key in list(client.scan_iter(match=f"{keys.prefix}*")):
                client.delete(key)


class TestCounts:
    def test_nothing_was_counted(self, store: Store, keys: Keys) -> None:
        assert store.counts(keys()) == {}
        assert store.counts(keys(), store.clock()) == {}

    def test_they_add_up(self, store: Store, keys: Keys) -> None:
        since = store.clock()
        store.count(keys(), {("a", "started"): 1, ("b", "started"): 2})
        store.count(keys(), {("a", "started"): 10, ("a", "dropped"): 3})
        expected = {("a", "started"): 11, ("b", "started"): 2, ("a", "dropped"): 3}
        assert store.counts(keys()) == expected
        assert store.counts(keys(), since) == expected, "though the hour may end while this test runs"

    def test_each_name_has_its_own(self, store: Store, keys: Keys) -> None:
        store.count(keys("one"), {("a", "started"): 1})
        store.count(keys("other"), {("a", "started"): 5})
        assert store.counts(keys("one")) == {("a", "started"): 1}

    def test_what_was_counted_before_is_not_asked_for(self, store: Store, keys: Keys) -> None:
        store.count(keys(), {("a", "started"): 1})
        assert store.counts(keys(), store.clock() + HOUR) == {}

    def test_a_task_may_have_any_name(self, store: Store, keys: Keys) -> None:
        counts = {(name, "started"): number for number, name in enumerate(ODD, 1)}
        store.count(keys(), counts)
        assert store.counts(keys()) == counts

    def test_no_count_of_many_at_once_is_lost(self, store: Store, keys: Keys) -> None:
        def add() -> None:
            for _ in range(25):
                store.count(keys(), {("a", "started"): 1, ("a", "dropped"): 2})

        threads = [threading.Thread(target=add) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.counts(keys()) == {("a", "started"): 100, ("a", "dropped"): 200}

    def test_they_are_no_claims(self, store: Store, keys: Keys) -> None:
        store.count(keys(), {("a", "started"): 1})
        assert dict(store.scan(f"{keys.prefix}*")) == {}


class TestTexts:
    def test_there_is_none_at_first(self, store: Store, keys: Keys) -> None:
        assert store.look(keys()) == ""

    def test_one_takes_the_place_of_another(self, store: Store, keys: Keys) -> None:
        assert store.swap(keys(), "", "one", MINUTE)
        assert store.look(keys()) == "one"
        assert store.swap(keys(), "one", "two\né", MINUTE)
        assert store.look(keys()) == "two\né"

    def test_but_only_of_the_one_that_was_seen(self, store: Store, keys: Keys) -> None:
        store.swap(keys(), "", "one", MINUTE)
        assert not store.swap(keys(), "", "two", MINUTE)
        assert not store.swap(keys(), "another", "two", MINUTE)
        assert store.look(keys()) == "one"

    def test_it_lives_as_long_as_it_was_given(self, store: Store, keys: Keys) -> None:
        store.swap(keys("short"), "", "one", SHORT)
        store.swap(keys("long"), "", "one", SHORT)
        store.swap(keys("long"), "one", "two", MINUTE)
        wait_until(lambda: store.look(keys("short")) == "", 5)
        assert store.look(keys("long")) == "two"
        assert store.swap(keys("short"), "", "new", MINUTE)

    def test_it_is_no_claim(self, store: Store, keys: Keys) -> None:
        store.swap(keys(), "", "one", MINUTE)
        assert dict(store.scan(f"{keys.prefix}*")) == {}


class TestHours:
    """By the one store whose clock a test can turn."""

    @pytest.fixture
    def turn(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
        self.now = 1_700_000_000_000
        self.store = MemoryStore(lambda: self.now * 1000)

        def turn(ms: int) -> None:
            self.now += ms

        return turn

    def test_an_hour_is_there_as_long_as_it_is_kept(self, turn: Callable[[int], None]) -> None:
        first = self.now
        self.store.count("n", {("a", "started"): 1})
        turn(HOUR)
        self.store.count("n", {("a", "started"): 2})
        assert self.store.counts("n", first) == {("a", "started"): 3}
        assert self.store.counts("n", self.now) == {("a", "started"): 2}

        turn(KEPT - HOUR)
        self.store.count("other", {("a", "started"): 1})
        assert self.store.counts("n", first) == {("a", "started"): 2}
        turn(HOUR)
        assert self.store.counts("n", first) == {}
        assert self.store.counts("n") == {("a", "started"): 3}, "those of all time are kept"

    def test_memory_does_not_grow_with_time(self, turn: Callable[[int], None]) -> None:
        for _ in range(len(hours(0, self.now)) * 2):
            self.store.count("n", {("a", "started"): 1})
            turn(HOUR)
        assert len(self.store._counts) == len(hours(0, self.now)) + 1


def test_all_in_redis_has_an_expiry(client: Client, keys: Keys) -> None:
    store: RedisStore = store_on(client)
    hour = store.clock() // HOUR
    store.count(keys(), {("a", "started"): 1})
    store.swap(keys(), "", "one", MINUTE)
    names = {store.clock() // HOUR, hour}
    kept = [client.pttl(keys(f"a:{name}")) for name in names | {"total"}]
    assert all(KEPT - MINUTE < ttl <= KEPT for ttl in kept if ttl != -2)
    assert len([ttl for ttl in kept if ttl != -2]) == 2
    assert 0 < client.pttl(keys()) <= MINUTE
