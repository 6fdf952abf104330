"""What every store promises a start that is to keep a rate; how slots are spaced is a property of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import redis

from celery_dedupe.core.asks import Attempt, BeginAsk, Begun, Caller, FinishAsk, Later, RateAsk, Refused
from celery_dedupe.core.parts import Pace
from celery_dedupe.store.protocol import Store
from celery_dedupe.store.redis_cluster import ClusterStore
from tests.contract.asks import MINUTE, begun, claim, near, pass_by, queued_ids, running_tokens, slot
from tests.contract.conftest import Keys, store_on
from tests.harness.waiting import wait_until

HOUR = 3_600_000_000  # microseconds
ME = Attempt("t1", "tok")


def rated(
    key: str, starts: int = 2, *, shown: int = 0, reserves: bool = True, window: int = HOUR
) -> BeginAsk:
    return BeginAsk(key, slot=False, rate=RateAsk(starts, window, shown, reserves, 0, 3 * HOUR))


def later(store: Store, *asks: BeginAsk) -> Later:
    reply = store.begin(asks, ME)
    assert isinstance(reply, Later), reply
    return reply


def pace(store: Store, key: str) -> Pace:
    found = store.read(key).pace
    assert found
    return found


def test_so_many_start_at_once_and_the_others_are_promised_slots(store: Store, keys: Keys) -> None:
    for _ in range(2):
        assert store.begin([rated(keys())], ME) == Begun((0,))
    first, second = pace(store, keys()).starts
    assert 0 <= store.clock() - second // 1000 < MINUTE
    promised = [later(store, rated(keys())) for _ in range(3)]
    slots = [reply.slots[0] for reply in promised]
    assert slots == [first + HOUR, first + HOUR * 3 // 2, first + HOUR * 2]
    assert all(near(reply.wait + 60_000 - 60 * 60_000 * (2 + n) // 2) for n, reply in enumerate(promised))
    assert [reply.index for reply in promised] == [0, 0, 0]
    assert pace(store, keys()).starts == (first, second)


def test_who_shows_a_slot_keeps_it(store: Store, keys: Keys) -> None:
    for _ in range(2):
        begun(store, ME, rated(keys()))
    (promised,) = later(store, rated(keys())).slots
    tail = pace(store, keys()).tail
    for _ in range(3):
        assert later(store, rated(keys(), shown=promised)).slots == (promised,)
    assert pace(store, keys()).tail == tail


def test_at_his_slot_he_starts_and_those_who_wait_behind_do_not_matter(store: Store, keys: Keys) -> None:
    brief = [rated(keys(), starts, window=200_000) for starts in (1, 1)]
    begun(store, ME, brief[0])
    (first,), (_,) = later(store, brief[0]).slots, later(store, brief[0]).slots
    mine = [rated(keys(), 1, shown=first, window=200_000)]
    wait_until(lambda: store.begin(mine, ME) == Begun((0,)), 5)
    assert pace(store, keys()).starts[-1] >= first


def test_a_start_that_is_near_is_given_for_then(store: Store, keys: Keys) -> None:
    ask = rated(keys(), 1)
    patient = replace(ask, rate=RateAsk(1, HOUR, 0, True, 2 * HOUR, 3 * HOUR))
    begun(store, ME, ask)
    reply = store.begin([patient], ME)
    assert isinstance(reply, Begun)
    assert near(reply.delay, 60 * 60_000)
    (start,) = pace(store, keys()).starts  # The first one is no longer in a window with any to come.
    assert near(start // 1000 - store.clock(), 60 * 60_000)


def test_without_a_promise_nothing_changes(store: Store, keys: Keys) -> None:
    for _ in range(2):
        begun(store, ME, rated(keys()))
    record = store.read(keys())
    reply = later(store, rated(keys(), reserves=False))
    assert (reply.index, reply.slots) == (0, (0,))
    assert near(reply.wait, 60 * 60_000)
    assert store.read(keys()) == record


def test_a_slot_that_is_given_back_is_the_next_ones(store: Store, keys: Keys) -> None:
    for _ in range(2):
        begun(store, ME, rated(keys()))
    slots = [later(store, rated(keys())).slots[0] for _ in range(4)]
    store.withdraw([keys()], "t1", slots={keys(): slots[1]})
    store.withdraw([keys()], "t1", slots={keys("other"): slots[2]})
    store.withdraw([keys()], "t1")
    assert pace(store, keys()).freed == (slots[1],)
    assert [later(store, rated(keys())).slots[0] for _ in range(2)] == [slots[1], slots[3] + HOUR // 2]


def test_the_record_ends_with_what_it_knows(store: Store, keys: Keys) -> None:
    begun(store, ME, rated(keys(), window=50_000))
    wait_until(lambda: not store.read(keys()), 5)
    begun(store, ME, rated(keys()))
    assert near(pace(store, keys()).expires_at - store.clock(), 60 * 60_000 + 1)


def test_a_lock_beside_it_is_taken_with_it(store: Store, keys: Keys) -> None:
    store.claim([claim(keys(name)) for name in "ac"], Caller("t1"))
    fences = begun(store, ME, pass_by(keys("a")), rated(keys("b")), slot(keys("c")))
    assert [fence > 0 for fence in fences] == [False, False, True]
    assert running_tokens(store.read(keys("c"))) == ["tok"]
    assert queued_ids(store.read(keys("a"))) == []


@pytest.mark.parametrize("place", [0, 1])
def test_a_lock_that_refuses_takes_nothing_of_the_rate(store: Store, keys: Keys, place: int) -> None:
    begun(store, Attempt("t2", "tok2"), slot(keys("lock")))
    asks = [slot(keys("lock"))]
    asks.insert(place, rated(keys("rate")))
    reply = store.begin(asks, ME)
    assert isinstance(reply, Refused)
    assert reply.index == 1 - place
    assert store.read(keys("rate")).pace is None


@pytest.mark.parametrize("place", [0, 1])
def test_a_rate_that_refuses_takes_no_lock_and_claims_are_held_so_much_longer(
    store: Store, keys: Keys, place: int
) -> None:
    for _ in range(2):
        begun(store, Attempt("t2", "tok2"), rated(keys("rate")))
    store.claim([claim(keys("lock"))], Caller("t1"))
    asks = [slot(keys("lock"), hold=MINUTE)]
    asks.insert(place, rated(keys("rate")))
    reply = later(store, *asks)
    assert reply.index == place
    assert [bool(promised) for promised in reply.slots] == [number == place for number in (0, 1)]
    record = store.read(keys("lock"))
    assert (running_tokens(record), queued_ids(record)) == ([], ["t1"])
    assert near(record.queued[0].expires_at - store.clock(), 61 * 60_000)


def test_of_two_rates_the_later_slot_counts_and_the_other_takes_nothing(store: Store, keys: Keys) -> None:
    if isinstance(store, ClusterStore):
        pytest.skip("a cluster is asked one after the other, and a start that is counted stays counted")
    begun(store, ME, rated(keys("b"), 1))
    reply = later(store, rated(keys("a"), 1, shown=7), rated(keys("b"), 1))
    assert (reply.index, reply.slots[0], reply.slots[1] > 0) == (1, 7, True)


def test_two_rates_are_both_counted(store: Store, keys: Keys) -> None:
    assert store.begin([rated(keys("a"), 1), rated(keys("b"), 3)], ME) == Begun((0, 0))
    assert len(pace(store, keys("a")).starts) == len(pace(store, keys("b")).starts) == 1


def test_other_verbs_leave_it_alone(store: Store, keys: Keys) -> None:
    begun(store, ME, rated(keys()))
    known = pace(store, keys())
    store.claim([claim(keys())], Caller("t1"))
    begun(store, ME, slot(keys()))
    store.finish([FinishAsk(keys(), "tok", "done", MINUTE)], ME, well=True)
    record = store.read(keys())
    assert record.pace == known
    assert record.done


def test_a_record_has_room_for_a_thousand_starts_and_as_many_slots(
    keys: Keys, open_client: Callable[[str], redis.Redis]
) -> None:
    client = open_client("valkey")
    store = store_on(client)
    for _ in range(1010):
        begun(store, ME, rated(keys(), 10**6))
    slots = [later(store, rated(keys(), 1000)).slots[0] for _ in range(1010)]
    for place in range(0, 1008, 2):
        store.withdraw([keys()], "t1", slots={keys(): slots[place]})
    known = pace(store, keys())
    assert (len(known.starts), len(known.freed)) == (1000, 504)
    assert client.strlen(keys()) < 30_000
