"""Clients for the URLs of Redis stores."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.cluster import REDIS_ALLOWED_KEYS, ClusterNode, RedisCluster
from redis.connection import parse_url
from redis.credentials import UsernamePasswordCredentialProvider
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import RedisError
from redis.retry import Retry
from redis.sentinel import Sentinel

from celery_dedupe.core.suggestions import choices
from celery_dedupe.core.urls import mask, scheme_of
from celery_dedupe.errors import ConfigurationError
from celery_dedupe.store.redis import RedisStore
from celery_dedupe.store.redis_cluster import ClusterStore

T = TypeVar("T")
Arguments = dict[str, Any]

TIMEOUTS = {"socket_connect_timeout": 1.0, "socket_timeout": 1.0}  # seconds
PORTS = {"sentinel": 26379}
OF_SENTINEL = {"master_name", "sentinel_kwargs", "min_other_sentinels"}
# Where the server is, is the URL's; and one client serves all threads of a process.
NOT_OPTIONS = {
    "self", "kwargs", "host", "port", "url", "unix_socket_path", "startup_nodes", "connection_pool",
    "single_connection_client",
}  # fmt: skip


def open_redis(url: str, options: Mapping[str, Any]) -> RedisStore:
    """Return the store for a Redis URL that ``check_url`` has passed. Connects to nothing yet."""
    scheme = scheme_of(url)
    hosts = [_parse(one, scheme, url) for one in url.split(";")]
    settings: Arguments = dict(TIMEOUTS)
    for place in reversed(hosts):
        settings |= {name: value for name, value in place.items() if name not in ("host", "port")}
    settings |= options
    if scheme.endswith("cluster"):
        return ClusterStore(_cluster(hosts[0], settings, url))
    settings = {**_retry_once(), **settings}
    if scheme == "sentinel":
        return RedisStore(_sentinel(hosts, settings, url), owned=True)
    path = settings.pop("path", None)
    arguments = _checked(settings, _parameters(redis.Redis), url)
    if path is not None:
        arguments["unix_socket_path"] = path
    else:
        arguments |= {name: hosts[0][name] for name in ("host", "port")}
    return RedisStore(_built(lambda: redis.Redis(**arguments), url), owned=True)


def on_client(client: Any) -> RedisStore:
    """Return the store on a client of the user's, which stays open when the store is closed."""
    if isinstance(client, RedisCluster):
        return ClusterStore(lambda: client, owned=False)
    if isinstance(client, redis.Redis):
        return RedisStore(client)
    kind = type(client)
    raise ConfigurationError(
        f"client= is a {kind.__module__}.{kind.__qualname__}; give a redis.Redis or a redis.RedisCluster"
    )


def _parse(one: str, scheme: str, url: str) -> Arguments:
    """Return what one URL, or one of a list, says, under the names of the client's arguments."""
    rest = one.partition("://")[2] if "://" in one else one
    kind = {"redis+socket": "unix", "rediss": "rediss", "rediss+cluster": "rediss"}.get(scheme, "redis")
    try:
        settings: Arguments = parse_url(f"{kind}://{rest}")  # type: ignore[no-untyped-call]  # redis-py 8
        db = settings.pop("virtual_host", None)  # Celery's name for the database of a socket.
        if kind != "unix":
            db = urlsplit(f"{kind}://{rest}").path or db
        if db is not None and db.strip("/"):
            settings["db"] = int(db.strip("/"))
    except ValueError:
        # Its own text may show a piece of a password that has an unescaped / or # in it.
        raise ConfigurationError(
            f"dedupe_url {mask(url)!r}: the port, the database and numbers after '?' must be numbers; "
            "write / # ? and @ in a password as %2F %23 %3F and %40"
        ) from None
    settings.pop("connection_class", None)
    if kind == "rediss":
        settings["ssl"] = True
    if kind != "unix":
        settings = {"host": "localhost", "port": PORTS.get(scheme, 6379), **settings}
    return settings


def _sentinel(hosts: Iterable[Arguments], settings: Arguments, url: str) -> redis.Redis:
    known = _parameters(redis.Redis)
    settings = _checked(settings, known | OF_SENTINEL, url)
    name = settings.pop("master_name", None)
    if not name:
        raise ConfigurationError(
            f"dedupe_url {mask(url)!r} needs the name of the master that the Sentinels watch: "
            "dedupe_store_options = {'master_name': 'mymaster'}"
        )
    others = settings.pop("min_other_sentinels", 0)
    asked = {**TIMEOUTS, **_retry_once(), **settings.pop("sentinel_kwargs", {})}
    asked = _checked(asked, known, url)
    addresses = [(host["host"], host["port"]) for host in hosts]
    connect: Any = Sentinel
    return _built(lambda: connect(addresses, others, asked, **settings).master_for(name), url)


def _cluster(first: Arguments, settings: Arguments, url: str) -> Callable[[], RedisCluster]:
    if settings.pop("db", 0) != 0:
        raise ConfigurationError(f"dedupe_url {mask(url)!r}: a cluster has no database but 0; leave it out")
    settings = _checked(settings, _parameters(RedisCluster) | set(REDIS_ALLOWED_KEYS), url)
    # redis-py 5 counts tries under the older name; from 6 on that name draws a warning.
    old = redis.__version__.startswith("5.")
    tries = {"cluster_error_retry_attempts": 1} if old else {"retry": Retry(NoBackoff(), 1)}
    settings = {"require_full_coverage": False, **tries, **settings}
    node: Any = ClusterNode
    return lambda: RedisCluster(startup_nodes=[node(first["host"], first["port"])], **settings)


def _checked(settings: Arguments, known: set[str], url: str) -> Arguments:
    """Return the settings checked by name, the timeouts by value, and with the password out of every repr."""
    settings = dict(settings)
    known = known - NOT_OPTIONS
    for name in settings:
        if name not in known:
            raise ConfigurationError(
                f"dedupe_store_options or dedupe_url {mask(url)!r}: the client has no option {name!r}; "
                f"{choices(name, known)}"
            )
    for name in TIMEOUTS:
        value = settings[name]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value is not None and not (number and value > 0):
            raise ConfigurationError(
                f"dedupe_store_options {name} {value!r}: write seconds, more than 0, or None to wait for ever"
            )
    tls = sorted(name for name in settings if name.startswith("ssl_"))
    if tls and not settings.get("ssl"):
        raise ConfigurationError(f"{', '.join(tls)} with dedupe_url {mask(url)!r}: for TLS write rediss://")
    if not settings.get("credential_provider"):
        # redis-py 6 and 7 show a plain password in the client's repr, and that in some errors.
        login = settings.pop("username", None), settings.pop("password", None)
        if any(login):
            settings["credential_provider"] = UsernamePasswordCredentialProvider(*login)
    return settings


def _built(build: Callable[[], redis.Redis], url: str) -> redis.Redis:
    """Return the client once its settings have made up a connection, which is not opened."""
    try:
        client = build()
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)
    except (TypeError, ValueError, RedisError) as error:
        raise ConfigurationError(f"dedupe_store_options or dedupe_url {mask(url)!r}: {error}") from None
    return client


def _parameters(kind: type) -> set[str]:
    return set(inspect.signature(kind).parameters)


def _retry_once() -> Arguments:
    # A pooled connection that the server has closed is worth a second try; a server that is silent is not.
    # redis-py 5 retries only what both arguments name.
    return {"retry": Retry(NoBackoff(), 1, (ConnectionLost,)), "retry_on_error": [ConnectionLost]}
