"""What becomes of a URL and options, without a server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import fakeredis
import pytest
import redis
import redis.asyncio
from redis.connection import SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import TimeoutError as TimedOut
from redis.sentinel import SentinelManagedSSLConnection

from celery_dedupe.errors import ConfigurationError
from celery_dedupe.store.connect import open_store
from celery_dedupe.store.memory import MemoryStore
from celery_dedupe.store.redis import RedisStore
from celery_dedupe.store.redis_cluster import ClusterStore

SECRET = "s3cr3t"


def client_of(url: str, options: Mapping[str, Any] | None = None) -> redis.Redis:
    store = open_store(url, options or {})
    assert isinstance(store, RedisStore)
    client: redis.Redis = store._client
    return client


def arguments(client: redis.Redis) -> dict[str, Any]:
    return dict(client.connection_pool.connection_kwargs)


def login(given: Mapping[str, Any]) -> tuple[str, ...]:
    found: tuple[str, ...] = given["credential_provider"].get_credentials()
    return found


def wrong(url: str, options: Mapping[str, Any] | None = None) -> str:
    with pytest.raises(ConfigurationError) as raised:
        open_store(url, options or {})
    assert SECRET not in str(raised.value)
    return str(raised.value)


class TestUrls:
    @pytest.mark.parametrize(
        ("url", "host", "port", "db"),
        [
            ("redis://", "localhost", 6379, 0),
            ("redis://h", "h", 6379, 0),
            ("redis://h:7/2", "h", 7, 2),
            ("redis://h:7/?db=3", "h", 7, 3),
            ("redis://[::1]:7//4", "::1", 7, 4),
        ],
    )
    def test_tcp(self, url: str, host: str, port: int, db: int) -> None:
        given = arguments(client_of(url))
        assert (given["host"], given["port"], given.get("db", 0)) == (host, port, db)

    @pytest.mark.parametrize(
        ("url", "db"),
        [
            ("redis+socket:///run/r.sock", 0),
            ("redis+socket:///run/r.sock?db=5", 5),
            ("redis+socket:///run/r.sock?virtual_host=5", 5),
            ("redis+socket:///run/r.sock?virtual_host=/5", 5),
            ("socket:///run/r.sock?virtual_host=5", 5),
        ],
    )
    def test_sockets(self, url: str, db: int) -> None:
        client = client_of(url)
        assert client.connection_pool.connection_class is UnixDomainSocketConnection
        assert (arguments(client)["path"], arguments(client).get("db", 0)) == ("/run/r.sock", db)

    @pytest.mark.parametrize("required", ["required", "CERT_REQUIRED"])
    def test_tls(self, required: str) -> None:
        client = client_of(f"rediss://h/1?ssl_cert_reqs={required}&ssl_ca_certs=/ca.pem")
        assert client.connection_pool.connection_class is SSLConnection
        assert arguments(client)["ssl_ca_certs"] == "/ca.pem"
        assert arguments(client)["ssl_cert_reqs"] == "required"

    @pytest.mark.parametrize("url", ["redis://u:s3cr3t@h", "redis+socket://u:s3cr3t@/run/r.sock"])
    def test_a_login(self, url: str) -> None:
        assert login(arguments(client_of(url))) == ("u", SECRET)

    def test_a_password_alone_and_one_with_odd_characters(self) -> None:
        assert login(arguments(client_of("redis://:s3cr3t@h"))) == (SECRET,)
        assert login(arguments(client_of("redis://:a%2Fb%23c%40d@h"))) == ("a/b#c@d",)

    def test_no_login(self) -> None:
        assert not arguments(client_of("redis://h")).get("credential_provider")

    def test_sentinels(self) -> None:
        client = client_of(
            "sentinel://:s3cr3t@h1:1;sentinel://h2;h3:3/2",
            {"master_name": "m", "min_other_sentinels": 1, "sentinel_kwargs": {"password": "other"}},
        )
        pool: Any = client.connection_pool
        sentinels = pool.sentinel_manager.sentinels
        places = [(arguments(one)["host"], arguments(one)["port"]) for one in sentinels]
        assert places == [("h1", 1), ("h2", 26379), ("h3", 3)]
        assert pool.service_name == "m"
        assert pool.sentinel_manager.min_other_sentinels == 1
        assert (arguments(client)["db"], login(arguments(client))) == (2, (SECRET,))
        for one in sentinels:
            assert login(arguments(one)) == ("other",)
            assert (arguments(one)["socket_timeout"], arguments(one)["socket_connect_timeout"]) == (1, 1)

    def test_sentinels_with_tls(self) -> None:
        client = client_of("sentinel://h", {"master_name": "m", "ssl": True, "ssl_cert_reqs": "none"})
        assert client.connection_pool.connection_class is SentinelManagedSSLConnection

    @pytest.mark.parametrize("scheme", ["redis+cluster", "rediss+cluster"])
    def test_a_cluster_is_not_asked_before_it_is_used(self, scheme: str) -> None:
        store = open_store(f"{scheme}://:s3cr3t@no-such-host.invalid:1")
        assert isinstance(store, ClusterStore)
        store.close()

    def test_memory(self) -> None:
        assert isinstance(open_store("memory://"), MemoryStore)


class TestOptions:
    def test_the_defaults(self) -> None:
        for url, options in (("redis://h", {}), ("sentinel://h", {"master_name": "m"})):
            client = client_of(url, options)
            given = arguments(client)
            assert (given["socket_connect_timeout"], given["socket_timeout"]) == (1, 1)
            connection = client.connection_pool.connection_class(**given)
            retry = connection.retry
            assert ConnectionLost in retry._supported_errors
            assert not any(issubclass(TimedOut, error) for error in retry._supported_errors)
            assert retry._retries == 1
            assert retry._backoff.compute(1) == 0

    def test_the_url_beats_the_defaults_and_options_beat_the_url(self) -> None:
        assert arguments(client_of("redis://h?socket_timeout=3"))["socket_timeout"] == 3
        assert (
            arguments(client_of("redis://h?socket_timeout=3", {"socket_timeout": 4}))["socket_timeout"] == 4
        )
        assert arguments(client_of("redis://h/1", {"db": 2}))["db"] == 2
        assert arguments(client_of("redis://h", {"socket_timeout": None}))["socket_timeout"] is None
        assert client_of("redis://h", {"max_connections": 3}).connection_pool.max_connections == 3

    @pytest.mark.parametrize(
        ("url", "options", "name"),
        [
            ("redis://:s3cr3t@h", {"socket_timout": 1}, "socket_timeout"),
            ("redis://:s3cr3t@h?socket_timout=1", {}, "socket_timeout"),
            ("redis+socket:///r.sock", {"helath_check_interval": 1}, "health_check_interval"),
            ("sentinel://h", {"master_nam": "m"}, "master_name"),
            ("sentinel://h", {"master_name": "m", "sentinel_kwargs": {"pasword": SECRET}}, "password"),
            ("redis+cluster://h", {"require_full_coverag": True}, "require_full_coverage"),
            ("redis://h", {"master_name": "m"}, ""),
            ("redis://h", {"host": "other"}, ""),
            ("redis://h", {"connection_pool": None}, ""),
            ("memory://", {"socket_timeout": 1}, ""),
        ],
    )
    def test_an_unknown_one_is_named_with_the_nearest(
        self, url: str, options: dict[str, Any], name: str
    ) -> None:
        message = wrong(url, options)
        odd = {**options, **options.get("sentinel_kwargs", {})} or {"socket_timout": 1}
        assert any(repr(one) in message for one in odd)
        if name:
            assert f"did you mean {name!r}" in message

    @pytest.mark.parametrize("value", ["5", 0, -1, True])
    @pytest.mark.parametrize("name", ["socket_timeout", "socket_connect_timeout"])
    def test_a_timeout_is_seconds(self, name: str, value: object) -> None:
        message = wrong("redis://h", {name: value})
        assert name in message
        assert repr(value) in message

    @pytest.mark.parametrize(
        "options",
        [
            {"protocol": 5},
            {"ssl": True, "ssl_cert_reqs": "certainly"},
            {"password": SECRET, "credential_provider": object()},
        ],
    )
    def test_values_that_the_client_refuses(self, options: dict[str, Any]) -> None:
        assert "dedupe_store_options" in wrong("redis://u:s3cr3t@h", options)

    @pytest.mark.parametrize(
        "url", ["redis://:s3cr3t@h?ssl_ca_certs=/ca.pem", "redis+cluster://h?ssl_keyfile=/k"]
    )
    def test_tls_settings_without_tls(self, url: str) -> None:
        assert "rediss://" in wrong(url)


class TestWrongUrls:
    @pytest.mark.parametrize(
        "url",
        [
            "redis://:s3cr3t@h:port",
            "redis://:s3cr3t/x@h:6379",
            "redis://:s3cr3t#x@h:6379",
            "redis://:x#s3cr3t@h:6379",
            "redis://:x/s3cr3t@h:6379",
            "redis://:s3cr3t@h/name",
            "redis://:s3cr3t@h?socket_timeout=soon",
            "redis+socket://:s3cr3t@/r.sock?virtual_host=name",
            "sentinel://:s3cr3t@h:1;sentinel://:s3cr3t@h:x/0",
        ],
    )
    def test_numbers_that_are_none(self, url: str) -> None:
        assert "must be numbers" in wrong(url, {"master_name": "m"} if "sentinel" in url else {})

    def test_sentinel_without_a_master(self) -> None:
        message = wrong("sentinel://:s3cr3t@h:1;sentinel://:s3cr3t@h2")
        assert "dedupe_store_options = {'master_name': " in message

    def test_a_cluster_has_one_database(self) -> None:
        assert "no database but 0" in wrong("redis+cluster://:s3cr3t@h/3")

    @pytest.mark.parametrize("url", ["amqp://u:s3cr3t@h", "redi://:s3cr3t@h", "localhost:6379", ""])
    def test_other_schemes(self, url: str) -> None:
        assert "dedupe_url" in wrong(url)


class TestClients:
    def test_a_client_of_the_users(self) -> None:
        client = fakeredis.FakeRedis()
        assert type(open_store(None, client=client)) is RedisStore

    def test_a_store_of_the_users(self) -> None:
        store = MemoryStore()
        assert open_store(None, client=store) is store

    @pytest.mark.parametrize("client", [object(), "redis://h", redis.asyncio.Redis(), redis.Redis])
    def test_what_is_neither(self, client: object) -> None:
        with pytest.raises(ConfigurationError, match=r"give a redis\.Redis or a redis\.RedisCluster"):
            open_store(None, client=client)

    def test_options_for_it_come_too_late(self) -> None:
        with pytest.raises(ConfigurationError, match=r"\['socket_timeout'\] have no effect"):
            open_store(None, {"socket_timeout": 1}, client=fakeredis.FakeRedis())


class TestSecrets:
    @pytest.mark.parametrize(
        ("url", "options"),
        [
            ("redis://u:s3cr3t@h", {}),
            ("redis://h", {"username": "u", "password": SECRET}),
            ("rediss://u:s3cr3t@h", {}),
            ("redis+socket://u:s3cr3t@/r.sock", {}),
            ("sentinel://u:s3cr3t@h", {"master_name": "m", "sentinel_kwargs": {"password": SECRET}}),
        ],
    )
    def test_no_repr_shows_one(self, url: str, options: dict[str, Any]) -> None:
        store = open_store(url, options)
        client = store._client  # type: ignore[attr-defined]
        shown = [repr(store), repr(client), repr(client.connection_pool)]
        if url.startswith("sentinel"):
            manager = client.connection_pool.sentinel_manager
            shown += [repr(manager), *map(repr, manager.sentinels)]
        assert SECRET not in "".join(shown)


def test_claims_in_memory_need_no_redis_client() -> None:
    code = (
        "import sys; from celery_dedupe.store.connect import open_store; open_store('memory://');"
        "assert 'redis' not in sys.modules; open_store('redis://h'); assert 'redis' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
