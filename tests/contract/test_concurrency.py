"""Many at once: threads, forks, and the give-back of a cluster."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing import SimpleQueue as Answers
from multiprocessing.synchronize import Barrier
from typing import TypeVar

import pytest

from celery_dedupe.core.asks import Attempt, Begun, Caller, FinishAsk
from celery_dedupe.core.parts import FOREVER, Queued
from celery_dedupe.core.record import Record
from celery_dedupe.store import sql_text
from celery_dedupe.store.connect import open_store
from celery_dedupe.store.protocol import Store
from celery_dedupe.store.redis_cluster import ClusterStore
from celery_dedupe.store.sql import SqlStore
from tests.contract.asks import begun, claim, free, queued_ids, running_tokens, slot
from tests.contract.conftest import DATABASES, PATIENT, Keys
from tests.harness.servers import ValkeyServer

T = TypeVar("T")
THREADS = 32


def at_once(call: Callable[[int], T], count: int = THREADS) -> list[T]:
    """What ``call(0)``, ``call(1)``, ... return, from threads that start together."""
    barrier = threading.Barrier(count)

    def wait_and_call(number: int) -> T:
        barrier.wait(30)
        return call(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(wait_and_call, range(count)))


class TestThreads:
    @pytest.mark.parametrize("round_", range(5))
    def test_exactly_one_of_many_claims_is_granted(self, store: Store, keys: Keys, round_: int) -> None:
        if isinstance(store, ClusterStore) and round_ > 1:
            pytest.skip("two rounds will do")
        replies = at_once(lambda number: store.claim([claim(keys())], Caller(f"t{number}")))
        assert replies.count(None) == 1
        assert queued_ids(store.read(keys())) == [f"t{replies.index(None)}"]

    def test_of_lists_in_any_order_exactly_one_is_granted(self, store: Store, keys: Keys) -> None:
        if isinstance(store, ClusterStore):
            pytest.skip("a cluster gives no list at once: see TestCluster")
        names = [keys(name) for name in "abc"]

        def claim_all(number: int) -> object:
            turned = names[number % 3 :] + names[: number % 3]
            return store.claim([claim(name) for name in turned], Caller(f"t{number}"))

        replies = at_once(claim_all)
        assert replies.count(None) == 1
        winner = f"t{replies.index(None)}"
        assert [queued_ids(store.read(name)) for name in names] == [[winner]] * 3

    def test_so_many_starts_are_granted_as_there_are_slots(self, store: Store, keys: Keys) -> None:
        replies = at_once(
            lambda number: store.begin([slot(keys(), limit=4)], Attempt(f"t{number}", f"tok{number}"))
        )
        granted = [number for number, reply in enumerate(replies) if isinstance(reply, Begun)]
        assert len(granted) == 4
        assert sorted(running_tokens(store.read(keys()))) == sorted(f"tok{number}" for number in granted)
        fences = [reply.fences[0] for reply in replies if isinstance(reply, Begun)]
        assert len(set(fences)) == 4

    def test_one_slot_handed_on_has_growing_fences_and_one_owner(self, store: Store, keys: Keys) -> None:
        fences: list[int] = []

        def work(number: int) -> None:
            attempt = Attempt(f"t{number}", f"tok{number}")
            for _ in range(10):
                reply = store.begin([slot(keys())], attempt)
                if isinstance(reply, Begun):
                    fences.append(reply.fences[0])  # Guarded by nothing but the slot.
                    assert store.finish([FinishAsk(keys(), attempt.token, "free")], attempt, well=True) == [
                        True
                    ]

        at_once(work, 8)
        assert fences
        assert fences == sorted(set(fences))

    def test_connections_do_not_outgrow_the_threads(self, valkey: ValkeyServer, keys: Keys) -> None:
        with closing(open_store(valkey.store_url)) as store:
            before = len(valkey.client().client_list())

            def claim_often(number: int) -> None:
                for place in range(625):
                    store.claim([claim(keys(str(place % 20)))], Caller(f"t{number}"))

            at_once(claim_often, 8)
            assert len(valkey.client().client_list()) <= before + 8


def _claim_in_child(
    store: Store, key: str, number: int, answers: multiprocessing.SimpleQueue[object]
) -> None:
    replies = [store.claim([claim(f"{key}:{place}")], Caller(f"child{number}")) for place in range(50)]
    answers.put([place for place, reply in enumerate(replies) if reply is None])


class TestFork:
    @pytest.mark.parametrize("kind", ["store_url", "socket_url", "cluster", *DATABASES])
    def test_a_store_used_before_a_fork_works_in_every_child(
        self, request: pytest.FixtureRequest, shared_valkey: ValkeyServer, keys: Keys, kind: str
    ) -> None:
        if kind == "cluster":
            node = request.getfixturevalue("cluster")[0]
            url = f"redis+cluster://{node.host}:{node.port}"
        elif kind in ("sqlite", "postgres", "mariadb"):
            url = request.getfixturevalue(f"{kind}_store_url")
        else:
            url = shared_valkey.store_url if kind == "store_url" else shared_valkey.socket_url()
        context = multiprocessing.get_context("fork")
        with closing(open_store(url, PATIENT if url.startswith("db+") else {})) as store:
            assert store.claim([claim(keys("parent"))], Caller("parent")) is None
            answers: Answers[list[int]] = context.SimpleQueue()
            children = [
                context.Process(target=_claim_in_child, args=(store, keys(), number, answers))
                for number in range(4)
            ]
            for child in children:
                child.start()
            in_parent = [store.claim([claim(f"{keys()}:{place}")], Caller("parent")) for place in range(50)]
            granted = [place for _ in children for place in answers.get()]
            for child in children:
                child.join(30)
            assert [child.exitcode for child in children] == [0] * 4
            granted += [place for place, reply in enumerate(in_parent) if reply is None]
            assert sorted(granted) == list(range(50)), "each key is granted once, whoever asks"
            assert queued_ids(store.read(keys("parent"))) == ["parent"]


ROUNDS = 30


def _begin_in_process(url: str, key: str, number: int, barrier: Barrier, answers: Answers[object]) -> None:
    with closing(open_store(url, PATIENT)) as store:
        won = []
        for round_ in range(ROUNDS):
            barrier.wait(60)
            attempt = Attempt(f"t{number}", f"tok{number}/{round_}")
            if isinstance(store.begin([slot(f"{key}:{round_}")], attempt), Begun):
                won.append(round_)
        answers.put(won)


class TestProcesses:
    def test_of_many_processes_at_a_barrier_exactly_one_wins(self, database_url: str, keys: Keys) -> None:
        context = multiprocessing.get_context("spawn")
        answers: Answers[list[int]] = context.SimpleQueue()
        barrier = context.Barrier(6)
        children = [
            context.Process(
                target=_begin_in_process, args=(database_url, keys(), number, barrier, answers), daemon=True
            )
            for number in range(6)
        ]
        for child in children:
            child.start()
        won = sorted(round_ for _ in children for round_ in answers.get())
        for child in children:
            child.join(60)
        assert won == list(range(ROUNDS))

    def test_one_that_is_killed_in_the_middle_holds_up_nobody(self, database_url: str, keys: Keys) -> None:
        context = multiprocessing.get_context("spawn")
        ready: Answers[bool] = context.SimpleQueue()
        child = context.Process(target=_lock_and_wait, args=(database_url, keys(), ready), daemon=True)
        child.start()
        assert ready.get()
        child.kill()
        child.join()
        with closing(open_store(database_url, PATIENT)) as store:
            assert store.claim([claim(keys())], Caller("t1")) is None
            assert queued_ids(store.read(keys())) == ["t1"]


def _lock_and_wait(url: str, key: str, ready: Answers[bool]) -> None:
    store = open_store(url, PATIENT)
    assert isinstance(store, SqlStore)
    store.read(key)
    with store._engine.connect() as link:
        store._rows.lock(link, [key])
        store._rows.write(link, {key: (sql_text.write(Record(queued=(Queued("dead", FOREVER),))), FOREVER)})
        ready.put(True)
        time.sleep(600)  # with the row locked, until the test kills it


class TestCluster:
    @pytest.fixture
    def store(self, cluster: list[ValkeyServer]) -> object:
        store = open_store(f"redis+cluster://{cluster[1].host}:{cluster[1].port}")
        yield store
        store.close()

    def test_of_a_list_at_most_one_claim_is_granted_and_the_others_leave_nothing(
        self, store: ClusterStore, keys: Keys
    ) -> None:
        names = [keys(name) for name in "abcd"]
        for round_ in range(10):
            replies = at_once(
                lambda number: store.claim([claim(name) for name in names], Caller(f"t{number}")), 8
            )
            winners = [f"t{number}" for number, reply in enumerate(replies) if reply is None]
            assert len(winners) <= 1, round_
            assert [queued_ids(store.read(name)) for name in names] == [winners] * 4
            free(store, names)

    def test_of_a_list_at_most_one_start_is_granted_and_the_others_leave_nothing(
        self, store: ClusterStore, keys: Keys
    ) -> None:
        names = [keys(name) for name in "abcd"]
        for round_ in range(10):
            replies = at_once(
                lambda number: store.begin(
                    [slot(name) for name in names], Attempt(f"t{number}", f"tok{number}")
                ),
                8,
            )
            winners = [f"tok{number}" for number, reply in enumerate(replies) if isinstance(reply, Begun)]
            assert len(winners) <= 1, round_
            assert [running_tokens(store.read(name)) for name in names] == [winners] * 4
            free(store, names)

    def test_the_keys_of_one_list_are_spread_over_the_servers(
        self, cluster: list[ValkeyServer], store: ClusterStore, keys: Keys
    ) -> None:
        names = [keys(str(number)) for number in range(30)]
        begun(store, Attempt("t1", "tok"), *(slot(name) for name in names))
        counts = [len(node.client(0).keys(f"{keys.prefix}:*")) for node in cluster]
        assert sum(counts) == 30
        assert all(counts)
        free(store, names)
