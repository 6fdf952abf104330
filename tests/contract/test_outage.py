"""Whatever is wrong with the server, a verb says ``StoreUnavailable``, soon, and works again afterwards."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import pytest
import redis

from celery_dedupe.core.asks import Attempt, Caller, EvictAsk, FinishAsk, LeaseAsk
from celery_dedupe.errors import StoreUnavailable
from celery_dedupe.store.connect import open_store
from celery_dedupe.store.protocol import Store
from celery_dedupe.store.redis import RedisStore
from tests.contract.asks import MINUTE, claim, queued_ids, slot
from tests.contract.conftest import Keys
from tests.harness.proxies import Proxy
from tests.harness.servers import PORTS, ValkeyServer
from tests.harness.waiting import wait_until

VERBS: dict[str, Callable[[Store, str], object]] = {
    "claim": lambda store, key: store.claim([claim(key)], Caller("t1")),
    "withdraw": lambda store, key: store.withdraw([key], "t1"),
    "begin": lambda store, key: store.begin([slot(key)], Attempt("t1", "tok")),
    "renew": lambda store, key: store.renew([LeaseAsk(key, "tok", MINUTE)]),
    "finish": lambda store, key: store.finish(
        [FinishAsk(key, "tok", "free")], Attempt("t1", "tok"), well=True
    ),
    "read": lambda store, key: store.read(key),
    "scan": lambda store, key: list(store.scan(f"{key}*")),
    "evict": lambda store, key: store.evict([EvictAsk(key)]),
    "clock": lambda store, key: store.clock(),
}


@contextmanager
def opened(url: str, options: Mapping[str, Any] | None = None) -> Iterator[Store]:
    with closing(open_store(url, options or {})) as store:
        yield store


def fails(store: Store, keys: Keys, verb: str = "claim") -> str:
    with pytest.raises(StoreUnavailable) as raised:
        VERBS[verb](store, keys())
    return str(raised.value)


def took(call: Callable[[], object]) -> float:
    started = time.monotonic()
    call()
    return time.monotonic() - started


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port that nothing listens on."""
    for port in PORTS:
        with socket.socket() as holder:
            try:
                holder.bind(("127.0.0.1", port))
            except OSError:
                continue
            yield port
            return


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("scheme", ["redis", "redis+cluster", "sentinel"])
def test_nobody_listens(free_port: int, keys: Keys, scheme: str, verb: str) -> None:
    options = {"master_name": "mymaster"} if scheme == "sentinel" else {}
    with opened(f"{scheme}://:hidden@127.0.0.1:{free_port}", options) as store:
        message = fails(store, keys, verb)
    assert "hidden" not in message
    assert message.startswith("the claim store cannot be used: ")


@pytest.mark.parametrize("verb", VERBS)
def test_a_black_hole_costs_one_connect_and_one_read(
    shared_valkey: ValkeyServer, start_proxy: Callable[[str], Proxy], keys: Keys, verb: str
) -> None:
    proxy = start_proxy(shared_valkey.store_url)
    proxy.stall()
    with opened(proxy.url, {"socket_connect_timeout": 0.2, "socket_timeout": 0.2}) as store:
        assert took(lambda: fails(store, keys, verb)) < 0.6


@pytest.mark.parametrize("pooled", [False, True])
def test_by_default_that_is_two_seconds(
    shared_valkey: ValkeyServer, start_proxy: Callable[[str], Proxy], keys: Keys, pooled: bool
) -> None:
    proxy = start_proxy(shared_valkey.store_url)
    with opened(proxy.url) as store:
        if pooled:
            store.clock()
        proxy.stall()
        assert 0.9 < took(lambda: fails(store, keys)) < 2.2
        proxy.restore()
        assert store.claim([claim(keys("b"))], Caller("t1")) is None


def test_a_name_that_nobody_knows(keys: Keys) -> None:
    with opened("redis://no-such-host.invalid") as store:
        assert "no-such-host.invalid" in fails(store, keys)


def test_a_lost_connection_of_the_pool_is_not_noticed(
    shared_valkey: ValkeyServer, start_proxy: Callable[[str], Proxy], keys: Keys
) -> None:
    proxy = start_proxy(shared_valkey.store_url)
    with opened(proxy.url) as store:
        for verb, call in VERBS.items():
            store.clock()
            proxy.cut()
            assert call(store, keys()) is not NotImplemented, verb
        for number in range(5):
            proxy.cut()
            assert store.claim([claim(keys(str(number)))], Caller("t1")) is None


def test_nor_a_server_that_was_started_again(start_valkey: Callable[..., ValkeyServer], keys: Keys) -> None:
    server = start_valkey()
    with opened(server.store_url) as store:
        store.claim([claim(keys("a"))], Caller("t1"))
        server.restart()
        assert store.claim([claim(keys("a"))], Caller("t2")) is None
        server.kill()
        fails(store, keys)
        server.start()
        assert store.claim([claim(keys("a"))], Caller("t3")) is None
        assert queued_ids(store.read(keys("a"))) == ["t3"]


def test_a_server_that_cannot_write(start_valkey: Callable[..., ValkeyServer], keys: Keys) -> None:
    server = start_valkey()
    with opened(server.store_url) as store:
        store.claim([claim(keys("held"))], Caller("t0"))
        server.client().config_set("maxmemory", "1")
        assert "maxmemory" in fails(store, keys)
        server.client().config_set("maxmemory", "0")
        server.client().replicaof(server.host, server.port)
        assert "read only" in fails(store, keys)
        server.client().replicaof("NO", "ONE")
        assert store.claim([claim(keys())], Caller("t1")) is None


def test_a_password_that_is_missing_or_wrong_or_allows_too_little(
    start_valkey: Callable[..., ValkeyServer], keys: Keys
) -> None:
    server = start_valkey()
    server.client().acl_setuser("weak", enabled=True, passwords=["+hidden"], keys=["*"], commands=["+get"])
    place = f"{server.host}:{server.port}"
    with opened(f"redis://weak:hidden@{place}") as store:
        assert "permissions" in fails(store, keys)
    with opened(f"redis://weak:hidden2@{place}") as store:
        assert "hidden" not in fails(store, keys)
    server.client().config_set("requirepass", "hidden")
    with opened(f"redis://{place}") as store:
        assert "auth" in fails(store, keys).lower()
    with opened(f"redis://:hidden@{place}") as store:
        assert store.claim([claim(keys())], Caller("t1")) is None


def test_a_server_of_another_kind(keys: Keys) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            while True:
                try:
                    link, _ = listener.accept()
                except OSError:
                    return
                with link:
                    link.recv(4096)
                    link.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        with opened(f"redis://127.0.0.1:{listener.getsockname()[1]}") as store:
            assert fails(store, keys)


def test_no_connection_left_in_the_pool(valkey: ValkeyServer, keys: Keys) -> None:
    with redis.Redis.from_url(valkey.store_url, max_connections=1) as client:
        waiting = threading.Thread(target=client.blpop, args=([keys("list")],))
        waiting.start()
        wait_until(lambda: valkey.client().info("clients")["blocked_clients"], 5)
        store = RedisStore(client)
        assert fails(store, keys)
        valkey.client().rpush(keys("list"), "go on")
        waiting.join(10)
        assert store.claim([claim(keys())], Caller("t1")) is None


class TestCluster:
    @pytest.fixture
    def nodes(self, start_cluster: Callable[[], list[ValkeyServer]]) -> list[ValkeyServer]:
        return start_cluster()

    def test_one_server_away_costs_its_own_keys_only(self, nodes: list[ValkeyServer], keys: Keys) -> None:
        names = [keys(str(number)) for number in range(12)]
        with opened(f"redis+cluster://{nodes[0].host}:{nodes[0].port}") as store:
            for name in names:
                store.begin([slot(name, lease=MINUTE)], Attempt("t1", "tok"))
            gone = nodes[2].client(0).keys(f"{keys.prefix}:*")
            left = [name for name in names if name not in gone]
            assert gone
            assert left
            nodes[2].kill()
            with pytest.raises(StoreUnavailable):
                store.renew([LeaseAsk(name, "tok", 10 * MINUTE) for name in names])
            soon = time.time() * 1000 + 5 * MINUTE
            leases = [store.read(name).running[0].expires_at for name in left]
            assert min(leases) > soon, "the others are renewed"
            with pytest.raises(StoreUnavailable):
                store.claim([claim(left[0]), claim(gone[0])], Caller("t2"))
            assert not store.read(left[0]).queued, "a claim that was not whole is given back"
            with pytest.raises(StoreUnavailable):
                store.begin([slot(left[0], limit=2), slot(gone[0])], Attempt("t3", "tok3"))
            assert [run.token for run in store.read(left[0]).running] == ["tok"]
            asks = [FinishAsk(name, "tok", "free") for name in names]
            with pytest.raises(StoreUnavailable):
                store.finish(asks, Attempt("t1", "tok"), well=True)
            assert not any(store.read(name) for name in left)

    def test_a_cluster_that_comes_later(self, nodes: list[ValkeyServer], keys: Keys) -> None:
        with opened(f"redis+cluster://{nodes[0].host}:{nodes[0].port}") as store:
            for node in nodes:
                node.pause()
            assert fails(store, keys)
            for node in nodes:
                node.resume()
            wait_until(lambda: _claims(store, keys), 15, "the cluster does not come back")


def _claims(store: Store, keys: Keys) -> bool:
    try:
        return store.claim([claim(keys())], Caller("t1")) is None
    except StoreUnavailable:
        return False
