"""Where the stores of an app are: what ``dedupe_stores`` says, and who may name which of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from celery_dedupe.core.places import DEFAULT
from celery_dedupe.core.policy import Policy
from celery_dedupe.core.suggestions import choices
from celery_dedupe.core.urls import check_url, mask
from celery_dedupe.errors import ConfigurationError

_NAME = re.compile(r"[\w.-]+", re.ASCII)
_FORM = "write a URL, or {'url': ..., 'options': {...}}"


@dataclass(frozen=True, slots=True, repr=False)
class Address:
    """How to get at one store.

    Attributes:
        where: the setting that says so.
        url: ``None`` with a client. It may hold a password.
        options: arguments for the client. They may hold passwords.
        client: a ready client or store that was given in code.
    """

    where: str
    url: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    client: Any = None

    def __repr__(self) -> str:
        return mask(self.url) if self.url else "a client of the app's own"


def read_addresses(value: object, where: str) -> dict[str, Address]:
    """The stores in ``value``, by their names.

    Raises:
        ConfigurationError: it begins with ``where``, and shows no password.
    """
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{where} is of type {type(value).__name__}; write a dict of names to URLs")
    for name in value:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"{where} has the key {name!r}: a name holds letters, digits and . _ - only"
            )
    return {name: _address(one, f"{where}[{name!r}]") for name, one in value.items()}


def located(stores: Mapping[str, Address]) -> str:
    """Where the stores are, for people; it shows no password."""
    if list(stores) == [DEFAULT]:
        return repr(stores[DEFAULT])
    return ", ".join(f"{name} {address!r}" for name, address in sorted(stores.items()))


def check_stores(policies: Iterable[Policy], stores: Collection[str], where: str) -> None:
    """Raise ``ConfigurationError`` for the first policy whose store is none of ``stores``."""
    for policy in policies:
        if policy.store not in stores:
            mend = "; or set dedupe_url" if policy.store == DEFAULT else ""
            raise ConfigurationError(
                f"{where}: store {policy.store!r} is not in dedupe_stores; "
                f"{choices(policy.store, stores)}{mend}"
            )


def _address(value: object, where: str) -> Address:
    if isinstance(value, str):
        return Address(where, check_url(value, where=where))
    if not isinstance(value, Mapping):
        return Address(where, client=value)
    for name in value:
        if name not in ("url", "options"):
            raise ConfigurationError(f"{where} has the key {name!r}; {choices(name, ('url', 'options'))}")
    options = value.get("options") or {}
    if "url" not in value or not isinstance(options, Mapping):
        raise ConfigurationError(f"{where}: {_FORM}")
    return Address(where, check_url(value["url"], where=where), options)
