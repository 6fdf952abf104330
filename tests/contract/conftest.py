"""Every store there is, behind one fixture."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress

import fakeredis
import pytest
import redis
from redis.cluster import RedisCluster

from celery_dedupe.store.connect import open_store
from celery_dedupe.store.memory import MemoryStore
from celery_dedupe.store.protocol import Store
from celery_dedupe.store.redis import RedisStore
from celery_dedupe.store.redis_cluster import ClusterStore
from celery_dedupe.tables import claims, create_tables
from tests.contract.asks import free
from tests.harness.databases import mariadb_database, postgres_database
from tests.harness.reaper import Reaper
from tests.harness.servers import ValkeyServer, require_service
from tests.harness.waiting import wait_until

DATABASES = (
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.services),
    pytest.param("mariadb", marks=pytest.mark.services),
)
PATIENT = {"timeout": 30}  # seconds; a machine may be busy
SERVERS = ("fakeredis", "valkey", "valkey-decoded", "valkey-resp3", "redis", "cluster")
SLOTS = 16384


class Keys:
    """``keys("a")``: a key of the test's own."""

    def __init__(self) -> None:
        self.prefix = f"dedupe-test:{uuid.uuid4().hex}"

    def __call__(self, name: str = "a") -> str:
        return f"{self.prefix}:{name}"


@pytest.fixture
def keys() -> Keys:
    return Keys()


@pytest.fixture(scope="session")
def cluster(reaper: Reaper) -> Iterator[list[ValkeyServer]]:
    """Three servers that share the slots, and are to stay up."""
    nodes = form_cluster(reaper)
    yield nodes
    for node in nodes:
        node.close()


@pytest.fixture
def start_cluster(reaper: Reaper) -> Iterator[Callable[[], list[ValkeyServer]]]:
    """``start_cluster()``: such servers of the test's own."""
    started: list[ValkeyServer] = []

    def start() -> list[ValkeyServer]:
        nodes = form_cluster(reaper)
        started.extend(nodes)
        return nodes

    yield start
    for node in started:
        node.close()


def form_cluster(reaper: Reaper) -> list[ValkeyServer]:
    nodes = [
        ValkeyServer(reaper, cluster_enabled="yes", cluster_require_full_coverage="no") for _ in range(3)
    ]
    for node in nodes:
        node.start()
    clients = [node.client(0) for node in nodes]
    for place, client in enumerate(clients):
        first, end = SLOTS * place // 3, SLOTS * (place + 1) // 3
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
        client.execute_command("CLUSTER", "MEET", nodes[0].host, nodes[0].port)
    wait_until(lambda: all(_knows_all(client) for client in clients), 30, "the cluster does not form")
    return nodes


def _knows_all(client: redis.Redis) -> bool:
    info = client.execute_command("CLUSTER", "INFO")
    if isinstance(info, str):
        info = dict(line.split(":", 1) for line in info.splitlines())
    return (info["cluster_state"], info["cluster_size"], info["cluster_known_nodes"]) == ("ok", "3", "3")


Client = redis.Redis | RedisCluster


@pytest.fixture
def open_client(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Client]]:
    """``open_client("valkey")``: a redis-py client of that kind; closed after the test."""
    opened: list[Client] = []

    def open_one(kind: str) -> Client:
        opened.append(_client(kind, request))
        return opened[-1]

    yield open_one
    for client in opened:
        client.close()


def _client(kind: str, request: pytest.FixtureRequest) -> Client:
    if kind == "fakeredis":
        return fakeredis.FakeRedis(server=fakeredis.FakeServer())
    if kind == "redis":
        return redis.Redis.from_url(require_service("redis"))
    if kind == "cluster":
        node = request.getfixturevalue("cluster")[0]
        return RedisCluster(node.host, node.port)
    options = {"valkey-decoded": {"decode_responses": True}, "valkey-resp3": {"protocol": 3}}.get(kind, {})
    server: ValkeyServer = request.getfixturevalue("shared_valkey")
    return redis.Redis.from_url(server.store_url, **options)


def store_on(client: Client) -> RedisStore:
    return ClusterStore(lambda: client) if isinstance(client, RedisCluster) else RedisStore(client)


@pytest.fixture(params=SERVERS)
def client(request: pytest.FixtureRequest, open_client: Callable[[str], Client]) -> Client:
    """A client of each kind, one after the other."""
    return open_client(request.param)


@pytest.fixture(scope="session")
def sqlite_store_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"db+sqlite:///{tmp_path_factory.mktemp('claims')}/claims.sqlite"


@pytest.fixture(scope="session")
def postgres_store_url() -> Iterator[str]:
    """The URL of a store in a database of this run's own."""
    with postgres_database() as url:
        create_tables(f"db+{url}", claims)
        yield f"db+{url}"


@pytest.fixture(scope="session")
def mariadb_store_url() -> Iterator[str]:
    """The same in MariaDB."""
    with mariadb_database() as url:
        create_tables(f"db+{url}", claims)
        yield f"db+{url}"


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of a store in each database, one after the other."""
    url: str = request.getfixturevalue(f"{request.param}_store_url")
    return url


@pytest.fixture(params=("memory", *SERVERS, *DATABASES))
def store(
    request: pytest.FixtureRequest, keys: Keys, open_client: Callable[[str], Client]
) -> Iterator[Store]:
    """Each store, one after the other; what the test leaves under its keys is evicted."""
    kind = request.param
    store: Store
    if kind == "memory":
        store = MemoryStore()
    elif kind in SERVERS:
        store = store_on(open_client(kind))
    else:
        store = open_store(request.getfixturevalue(f"{kind}_store_url"), PATIENT)
    yield store
    with suppress(redis.ConnectionError):
        free(store, [key for key, _ in store.scan(f"{keys.prefix}:*")])
    if kind not in SERVERS:
        store.close()
