"""URLs of claim stores: which are accepted, and how they look without their passwords."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from celery_dedupe.core.suggestions import choices
from celery_dedupe.errors import ConfigurationError

DATABASES = ("postgresql", "mysql", "mariadb", "sqlite")
SCHEMES = (
    "redis", "rediss", "redis+socket", "sentinel", "redis+cluster", "rediss+cluster", "memory",
    *(f"db+{database}" for database in DATABASES),
)  # fmt: skip

_SQLALCHEMYS = (*DATABASES, "postgres", "oracle", "mssql", "cockroachdb")
_PART = re.compile(r"[;,](?=[\w+.-]+://)")
_USERINFO = re.compile(r"(?<=://)([^:@/?]*):(.*)@", re.DOTALL)
_QUERY = re.compile(r"([?&;][^=&]*(?:pass|pwd|secret|token)[^=&]*=)[^&;]*", re.IGNORECASE)
_CERT_REQS = re.compile(r"(?<=[?&]ssl_cert_reqs=)CERT_(NONE|OPTIONAL|REQUIRED)")


def mask(url: str) -> str:
    """Return ``url``, or a list of URLs, with every password as ``***``."""
    starts = [0, *(match.start() for match in _PART.finditer(url)), len(url)]
    parts = [url[start:end] for start, end in pairwise(starts)]
    return "".join(_QUERY.sub(r"\1***", _USERINFO.sub(r"\1:***@", part)) for part in parts)


def scheme_of(url: str) -> str:
    """Return the scheme of the URL, or of the first in a list."""
    return url.partition("://")[0].lower()


def check_url(url: object, *, where: str) -> str:
    """Return the store URL ``url``, if it is one, in the form that clients read.

    Raises:
        ConfigurationError: it is not text, has another scheme, or lists servers that are not Sentinels. The
            message begins with ``where`` and shows no password.
    """
    if not isinstance(url, str):
        raise ConfigurationError(
            f"{where} is of type {type(url).__name__}; write a URL such as 'redis://localhost:6379/0', "
            "or hand a ready client to Dedupe(app, client=...)"
        )
    scheme, shown = scheme_of(url), mask(url)
    if scheme.partition("+")[0] in _SQLALCHEMYS:
        raise ConfigurationError(
            f"{where} {shown!r}: write a database with db+ in front, as Celery does: 'db+{shown}'"
        )
    # A database's may name a driver as well.
    known = "+".join(scheme.split("+")[:2]) if scheme.startswith("db+") else scheme
    if "://" not in url or known not in SCHEMES:
        raise ConfigurationError(
            f"{where} {shown!r} has no scheme that can hold claims; {choices(scheme, SCHEMES)}"
        )
    if ";" in url and scheme != "sentinel":
        raise ConfigurationError(
            f"{where} {shown!r} lists several servers, but claims live on one; name that one, "
            "or use sentinel:// or redis+cluster://"
        )
    # Celery's own name for the three words that clients know as none, optional, required.
    return _CERT_REQS.sub(lambda match: match[1].lower(), scheme + url[len(scheme) :])


@dataclass(frozen=True, slots=True)
class Server:
    """A server that Celery itself is configured with.

    Attributes:
        setting: the name of the setting that holds its URL.
        url: what the setting holds.
        tls: Celery's TLS setting for it: nothing, ``True``, or arguments for the client.
        transport: Celery's transport options for it.
    """

    setting: str
    url: object
    tls: Any
    transport: Mapping[str, Any]


def shared_server(servers: Iterable[Server]) -> tuple[str, dict[str, Any]]:
    """Return the URL of the first that is Redis, and the client's options that Celery has for it.

    Raises:
        ConfigurationError: none is, or the first that is lists several servers.
    """
    seen: dict[str, str] = {}
    for server in servers:
        url = ";".join(server.url) if isinstance(server.url, (list, tuple)) else server.url
        if isinstance(url, str) and url:
            text = url if "://" in url else f"{url}://"
            text = f"redis+{text}" if scheme_of(text) == "socket" else text
            if scheme_of(text) in ("redis", "rediss", "redis+socket", "sentinel"):
                text = check_url(text, where=f"dedupe_url is not set, and {server.setting}")
                return _with_options(text, server.tls, server.transport)
            seen.setdefault(url, f"{server.setting} is {mask(url)!r}")
    found = ", ".join(seen.values()) or "none is set"
    raise ConfigurationError(
        f"dedupe_url is not set, and Celery's own servers are not Redis ({found}); "
        "set it to a Redis that all workers and publishers reach, such as 'redis://localhost:6379/0'"
    )


def _with_options(url: str, tls: Any, transport: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    options = {name: transport[name] for name in ("master_name", "sentinel_kwargs") if name in transport}
    if tls:
        options.update(tls if isinstance(tls, Mapping) else {})
        if isinstance(required := options.get("ssl_cert_reqs"), str):
            options["ssl_cert_reqs"] = required.removeprefix("CERT_").lower()
        if scheme_of(url) == "redis":
            url = f"rediss{url[len('redis') :]}"
        elif scheme_of(url) == "sentinel":
            options["ssl"] = True
    return url, options
