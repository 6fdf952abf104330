"""Several stores of an app as one, on real servers: of lists that cross them at most one is granted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from celery_dedupe.core.asks import Attempt, Begun, Caller, FinishAsk
from celery_dedupe.store.connect import open_store
from celery_dedupe.store.named import Stores
from tests.contract.asks import claim, queued_ids, running_tokens, slot
from tests.contract.conftest import DATABASES, PATIENT, Keys
from tests.contract.test_concurrency import at_once
from tests.harness.servers import ValkeyServer


@pytest.fixture(params=DATABASES)
def stores(request: pytest.FixtureRequest, shared_valkey: ValkeyServer) -> Iterator[Stores]:
    """Redis and a database."""
    url = request.getfixturevalue(f"{request.param}_store_url")
    with closing(open_store(shared_valkey.store_url)) as redis, closing(open_store(url, PATIENT)) as ledger:
        yield Stores({"default": redis, "ledger": ledger})


@pytest.fixture
def names(keys: Keys) -> list[str]:
    return [keys("a"), f"ledger/{keys('b')}", keys("c"), f"ledger/{keys('a')}"]


def test_of_claims_one_at_most_is_granted_and_the_others_leave_nothing(
    stores: Stores, names: list[str]
) -> None:
    for round_ in range(10):
        replies = at_once(
            lambda number: stores.claim([claim(name) for name in names], Caller(f"t{number}")), 8
        )
        winners = [f"t{number}" for number, reply in enumerate(replies) if reply is None]
        assert len(winners) <= 1, round_
        assert [queued_ids(stores.read(name)) for name in names] == [winners] * 4
        for winner in winners:
            stores.withdraw(names, winner)


def test_of_starts_at_most_one_is_granted_and_the_others_leave_nothing(
    stores: Stores, names: list[str]
) -> None:
    for round_ in range(10):
        attempts = [Attempt(f"t{number}", f"tok{number}") for number in range(8)]
        replies = at_once(
            lambda number: stores.begin([slot(name) for name in names], attempts[number]),  # noqa: B023
            8,
        )
        winners = [number for number, reply in enumerate(replies) if isinstance(reply, Begun)]
        assert len(winners) <= 1, round_
        assert [running_tokens(stores.read(name)) for name in names] == [
            [f"tok{number}" for number in winners]
        ] * 4
        for number in winners:
            asks = [FinishAsk(name, f"tok{number}", "free") for name in names]
            assert stores.finish(asks, attempts[number], well=True) == [True] * 4


def test_each_store_knows_its_own_keys_only(stores: Stores, names: list[str], keys: Keys) -> None:
    assert stores.claim([claim(name) for name in names], Caller("t1")) is None
    bare = {
        name: sorted(key for key, _ in place.store.scan(f"{keys.prefix}:*"))
        for name, place in stores.places.items()
    }
    assert bare == {"default": [keys("a"), keys("c")], "ledger": [keys("a"), keys("b")]}
    assert sorted(key for key, _ in stores.places["ledger"].scan(f"{keys.prefix}:*")) == sorted(names[1::2])
    stores.withdraw(names, "t1")
