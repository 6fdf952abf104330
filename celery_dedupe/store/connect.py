"""Which store a URL or a client of the user's stands for."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from celery_dedupe.core.addresses import Address
from celery_dedupe.core.places import DEFAULT
from celery_dedupe.core.urls import check_url, mask, scheme_of
from celery_dedupe.errors import ConfigurationError
from celery_dedupe.store.memory import MemoryStore
from celery_dedupe.store.protocol import Store

NONE: Mapping[str, Any] = MappingProxyType({})


def open_store(url: str | None, options: Mapping[str, Any] = NONE, client: Any = None) -> Store:
    """Return the store at ``url``, or the one on ``client``. Connects to nothing yet.

    Args:
        url: ``redis://``, ``rediss://``, ``redis+socket:///path?db=1``, ``sentinel://h1;sentinel://h2/0``,
            ``redis+cluster://``, ``rediss+cluster://``, ``memory://``, or with ``db+`` in front
            ``postgresql://``, ``mysql://``, ``mariadb://``, ``sqlite:///file`` of SQLAlchemy's. ``None`` with
            a client.
        options: of Redis, arguments of redis-py's client (timeouts in seconds, TLS, ...), and with Sentinel
            ``master_name``, ``sentinel_kwargs``, ``min_other_sentinels``. They beat what the URL says, which
            beats the defaults: 1 s to connect, 1 s to answer, one more try at once where a connection was
            lost, none after a timeout. Of a database, ``timeout`` in seconds, by default 1 (SQLite: 5), and
            arguments of ``sqlalchemy.create_engine``.
        client: a ready ``redis.Redis`` or ``redis.RedisCluster``, which keeps its own settings and stays open
            when the store is closed; or a store.

    Raises:
        ConfigurationError: it names the part that is wrong and the mend, and shows no password.
    """
    if client is not None:
        return _on_client(client, options)
    address = check_url(f"redis+{url}" if scheme_of(url or "") == "socket" else url, where="dedupe_url")
    if scheme_of(address) == "memory":
        if options:
            raise ConfigurationError(f"dedupe_store_options {sorted(options)}: memory:// has no options")
        return MemoryStore()
    if scheme_of(address).startswith("db+"):
        return _on_database(address, options)
    # Here and not above, since claims in memory need no redis-py.
    from celery_dedupe.store.redis_client import open_redis

    return open_redis(address, options)


def open_stores(addresses: Mapping[str, Address]) -> dict[str, Store]:
    """Return the stores at these addresses, by their names; in memory if there is none.

    Raises:
        ConfigurationError: see ``open_store``.
    """
    # In mode off there may be none, and it is asked for nothing.
    return {name: _at(address) for name, address in addresses.items()} or {DEFAULT: MemoryStore()}


def _at(address: Address) -> Store:
    try:
        return open_store(address.url, address.options, address.client)
    except ConfigurationError as error:
        # Of a store that is named, the settings that the text names are a part.
        lead = f"{address.where}: " if address.where.endswith("]") else ""
        raise ConfigurationError(f"{lead}{error}") from None


def _on_database(address: str, options: Mapping[str, Any]) -> Store:
    try:
        from celery_dedupe.store.sql_client import open_sql
    except ModuleNotFoundError as error:
        if error.name != "sqlalchemy":
            raise
        raise ConfigurationError(
            f"dedupe_url {mask(address)!r} needs SQLAlchemy 2: pip install 'celery-dedupe[sql]'"
        ) from None
    return open_sql(address, options)


def _on_client(client: Any, options: Mapping[str, Any]) -> Store:
    if options:
        raise ConfigurationError(
            f"dedupe_store_options {sorted(options)} have no effect on a client of your own: "
            "give them to the client where you make it"
        )
    if all(callable(getattr(client, verb, None)) for verb in ("claim", "begin", "finish")):
        store: Store = client
        return store
    from celery_dedupe.store.redis_client import on_client

    return on_client(client)
