"""A cluster changes under its clients: a slot moves to another node, a node dies and its replica follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass

import pytest
from redis.crc import key_slot

from celery_dedupe.core.asks import Attempt, Caller, FinishAsk, LeaseAsk
from celery_dedupe.errors import StoreUnavailable
from celery_dedupe.store.connect import open_store
from celery_dedupe.store.protocol import Store
from tests.contract.asks import begun, claim, free, holder_ids, queued_ids, running_tokens, slot
from tests.contract.conftest import Keys
from tests.harness.reaper import Reaper
from tests.harness.servers import ValkeyServer
from tests.harness.waiting import wait_until

BLOCKED = ("queued", "running")


@dataclass
class Move:
    """The slot of one key, on its way from one node to another."""

    key: str
    source: ValkeyServer
    target: ValkeyServer

    @property
    def slot(self) -> int:
        return int(key_slot(self.key.encode()))

    def begin(self) -> None:
        """From here on the source has what it had, and sends on (ASK) whoever wants what it has not."""
        self._set(self.target, "IMPORTING", self.source)
        self._set(self.source, "MIGRATING", self.target)

    def carry(self) -> None:
        self.source.client(0).migrate(self.target.host, self.target.port, [self.key], 0, 5000)

    def end(self) -> None:
        """From here on the source sends everybody away for good (MOVED)."""
        for node in (self.target, self.source):
            self._set(node, "NODE", self.target)

    def _set(self, node: ValkeyServer, state: str, other: ValkeyServer) -> None:
        node.client(0).execute_command("CLUSTER", "SETSLOT", self.slot, state, name_of(other))


def redirections(node: ValkeyServer, kind: str) -> int:
    """How often the node has said ASK or MOVED."""
    return int(node.client(0).info("errorstats").get(f"errorstat_{kind}", {}).get("count", 0))


def name_of(node: ValkeyServer) -> str:
    return str(node.client(0).execute_command("CLUSTER", "MYID"))


def owner(nodes: list[ValkeyServer], key: str) -> ValkeyServer:
    """Who has the key now: by its data, which every test here has put there."""
    (found,) = [node for node in nodes if key in node.client(0).keys("*")]
    return found


@pytest.fixture
def nodes(start_cluster: Callable[[], list[ValkeyServer]]) -> list[ValkeyServer]:
    return start_cluster()


@pytest.fixture
def store(nodes: list[ValkeyServer]) -> Iterator[Store]:
    url = f"redis+cluster://{nodes[0].host}:{nodes[0].port}"
    with closing(open_store(url, {"socket_timeout": 5})) as store:
        yield store


@pytest.fixture
def move(nodes: list[ValkeyServer], store: Store, keys: Keys) -> Move:
    """Of a key that is claimed by ``t1``."""
    assert store.claim([claim(keys(), blocked_by=BLOCKED)], Caller("t1")) is None
    source = owner(nodes, keys())
    target = next(node for node in nodes if node is not source)
    return Move(keys(), source, target)


def a_life(store: Store, key: str, task_id: str = "t1") -> None:
    """Every verb of a claim that is there already, to its end."""
    attempt = Attempt(task_id, f"tok-{task_id}", "n")
    assert holder_ids(store.claim([claim(key, blocked_by=BLOCKED)], Caller("other"))) == [task_id]
    begun(store, attempt, slot(key))
    assert running_tokens(store.read(key)) == [attempt.token]
    assert store.renew([LeaseAsk(key, attempt.token, 60_000)]) == [True]
    assert store.finish([FinishAsk(key, attempt.token, "free")], attempt, well=True) == [True]
    assert not store.read(key)
    assert store.claim([claim(key)], Caller("next")) is None
    assert [found for found, _ in store.scan(f"{key}*")] == [key]
    store.withdraw([key], "next")
    assert not store.read(key)


def test_what_has_not_moved_yet_is_still_served(store: Store, move: Move) -> None:
    move.begin()
    assert holder_ids(store.claim([claim(move.key, blocked_by=BLOCKED)], Caller("other"))) == ["t1"]
    begun(store, Attempt("t1", "tok"), slot(move.key))
    assert owner([move.source, move.target], move.key) is move.source


def test_what_has_moved_is_asked_for_where_it_is(store: Store, move: Move) -> None:
    move.begin()
    move.carry()
    a_life(store, move.key)
    assert redirections(move.source, "ASK") > 5
    assert not redirections(move.source, "MOVED")


def test_what_is_new_in_a_slot_that_moves_is_made_where_it_goes(store: Store, move: Move) -> None:
    move.begin()
    move.carry()
    store.withdraw([move.key], "t1")
    assert store.claim([claim(move.key)], Caller("t2")) is None
    assert owner([move.source, move.target], move.key) is move.target
    a_life(store, move.key, "t2")


def test_a_slot_that_has_moved_is_followed(store: Store, move: Move) -> None:
    move.begin()
    move.carry()
    move.end()
    assert owner([move.source, move.target], move.key) is move.target
    before = redirections(move.source, "MOVED")
    a_life(store, move.key)
    assert redirections(move.source, "MOVED") > before


def test_a_list_of_locks_is_granted_while_one_of_them_moves(store: Store, move: Move, keys: Keys) -> None:
    move.begin()
    move.carry()
    store.withdraw([move.key], "t1")
    asks = [claim(keys("b")), claim(move.key), claim(keys("c"))]
    assert store.claim(asks, Caller("t2")) is None
    refused = store.claim([claim(keys("d")), claim(move.key)], Caller("t3"))
    assert refused is not None
    assert (refused.index, holder_ids(refused)) == (1, ["t2"])
    assert not store.read(keys("d")), "what was given before the refusal is given back"


@pytest.fixture
def replica(nodes: list[ValkeyServer], reaper: Reaper) -> Iterator[ValkeyServer]:
    """One more node, a replica of the first."""
    for node in nodes:
        node.client(0).config_set("cluster-node-timeout", 1000)
    replica = ValkeyServer(reaper, cluster_enabled="yes", cluster_require_full_coverage="no",
                           cluster_node_timeout=1000, cluster_replica_validity_factor=0)  # fmt: skip
    replica.start()
    client, first = replica.client(0), nodes[0]
    client.execute_command("CLUSTER", "MEET", first.host, first.port)
    name = name_of(first)
    wait_until(lambda: name in str(client.execute_command("CLUSTER", "NODES")), 30)

    def follows() -> bool:
        with suppress(Exception):  # It is told of the node, and a moment later that this one is a primary.
            client.execute_command("CLUSTER", "REPLICATE", name)
        return client.info("replication").get("master_link_status") == "up"

    wait_until(follows, 30)
    everybody = [node.client(0) for node in nodes]
    wait_until(
        lambda: all(name_of(replica) in str(one.execute_command("CLUSTER", "NODES")) for one in everybody)
    )
    yield replica
    replica.close()


def test_a_node_dies_and_its_replica_takes_over(
    nodes: list[ValkeyServer], replica: ValkeyServer, store: Store, keys: Keys
) -> None:
    names = [keys(str(number)) for number in range(30)]
    for name in names:
        assert store.claim([claim(name)], Caller("t1")) is None
    theirs = [name for name in names if name in nodes[0].client(0).keys("*")]
    assert 0 < len(theirs) < len(names)
    wait_until(lambda: set(theirs) <= set(replica.client(0).keys("*")), 10)

    nodes[0].kill()

    for name in set(names) - set(theirs):
        answered(lambda name=name: store.read(name))  # The others serve on, whatever becomes of this one.
    for name in theirs:
        reply = answered(lambda name=name: store.claim([claim(name)], Caller("t2")))
        assert holder_ids(reply) == ["t1"], "nothing is forgotten that the replica had"
    assert store.claim([claim(keys("new"))], Caller("t3")) is None
    assert {name for name, _ in store.scan(f"{keys.prefix}*")} == {*names, keys("new")}
    assert free(store, [*names, keys("new")]) == len(names) + 1
    assert queued_ids(store.read(theirs[0])) == []


def answered(call: Callable[[], object]) -> object:
    """What the store says once it does."""
    replies: list[object] = []

    def works() -> bool:
        with suppress(StoreUnavailable):
            replies.append(call())
        return bool(replies)

    wait_until(works, 60, "no replica takes over", interval=0.1)
    return replies[0]
