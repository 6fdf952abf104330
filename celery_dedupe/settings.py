"""The extension's settings, read from ``app.conf`` and from the arguments of ``Dedupe``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from celery_dedupe.core.addresses import Address, check_stores, read_addresses
from celery_dedupe.core.fields import read_field
from celery_dedupe.core.locks import LOCKS
from celery_dedupe.core.places import DEFAULT
from celery_dedupe.core.policy import parse_policies
from celery_dedupe.core.rules import RuleSet
from celery_dedupe.core.suggestions import choices
from celery_dedupe.core.urls import Server, check_url, shared_server
from celery_dedupe.errors import ConfigurationError

__all__ = ["Mode", "Settings", "read_settings", "store_names"]

Mode = Literal["enforce", "observe", "off"]

_NAMES = (
    "url",
    "stores",
    "rules",
    "policies",
    "defaults",
    "mode",
    "prefix",
    "store_options",
    "eager",
    "stats",
)
_PREFIX = re.compile(r"[\w.:-]+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Settings:
    """All settings, checked.

    Attributes:
        stores: where claims live, by names; none in mode ``off``.
        rules: which policies each task has.
        mode: ``enforce``, or ``observe`` (report, refuse nothing), or ``off``.
        prefix: what every key in the store begins with.
        eager: eager calls take locks too.
        stats: verdicts are counted in the store.
        defaults: policy fields for what rules, tasks and calls leave open.
        policies: the user's own policies, by name.
    """

    stores: Mapping[str, Address]
    rules: RuleSet
    mode: Mode
    prefix: str
    eager: bool
    stats: bool
    defaults: Mapping[str, Any]
    policies: Mapping[str, Any]

    def __repr__(self) -> str:
        stores = ", ".join(f"{name}: {address!r}" for name, address in self.stores.items())
        return (
            f"Settings(stores={{{stores}}}, mode={self.mode!r}, prefix={self.prefix!r}, rules={self.rules!r})"
        )


def read_settings(conf: Any, **overrides: Any) -> Settings:
    """Return the settings in ``conf``; ``overrides`` beat them.

    Args:
        conf: ``app.conf``, with or without a namespace.
        **overrides: the arguments of ``Dedupe``: ``client``, and each setting without its ``dedupe_``.
            ``None`` stands for one that is not given.

    Raises:
        ConfigurationError: a setting is unknown or wrong; the message names it and the mend.
    """
    conf.finalize()  # Before its first use ``app.conf`` has not read its source.
    given = _given(overrides)
    found = _Source(_from_conf(conf), given)
    mode: Mode = found.read("mode", "enforce", _mode)
    policies = found.read("policies", {}, _mapping)
    defaults = found.read("defaults", {}, _mapping)
    _check_vocabulary(policies, defaults, found)
    stores = {} if mode == "off" else _stores(conf, found)
    rules = RuleSet(
        found.read("rules", {}, lambda value, where: value),
        defaults=defaults,
        named=policies,
        where=found.where("rules"),
    )
    if mode != "off":
        for rule in rules.listed:
            check_stores(rule.match.policies, stores, f"{found.where('rules')}[{rule.match.rule!r}]")
    return Settings(
        stores=stores,
        rules=rules,
        mode=mode,
        prefix=found.read("prefix", "dedupe", _prefix),
        eager=found.read("eager", False, _flag),
        stats=found.read("stats", True, _flag),
        defaults=defaults,
        policies=policies,
    )


def store_names(conf: Any, **overrides: Any) -> set[str]:
    """Return the names of the stores in ``conf``, which ``overrides`` beat; they may be wrong otherwise.

    Raises:
        ConfigurationError: there is an unknown setting, or ``dedupe_stores`` is no dict.
    """
    conf.finalize()
    return {DEFAULT, *_Source(_from_conf(conf), _given(overrides)).read("stores", {}, _mapping)}


def _given(overrides: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in overrides.items() if value is not None}
    for name in given:
        if name not in (*_NAMES, "client"):
            raise ConfigurationError(
                f"Dedupe(app, {name}=...) is unknown; {choices(name, [*_NAMES, 'client'])}"
            )
    return given


@dataclass(frozen=True, slots=True)
class _Source:
    conf: Mapping[str, Any]
    given: Mapping[str, Any]

    def where(self, name: str) -> str:
        return f"Dedupe(app, {name}=...)" if name in self.given else f"dedupe_{name}"

    def default_from(self) -> str:
        """Which setting says where the default store is; ``""`` if none does. Arguments beat all others."""
        for values, form in ((self.given, "Dedupe(app, {}=...)"), (self.conf, "dedupe_{}")):
            named = [name for name in ("client", "url") if values.get(name) is not None]
            stores = values.get("stores")
            if isinstance(stores, Mapping) and DEFAULT in stores:
                named.append("stores")
            if len(named) > 1:
                both = " and ".join(form.format(name) for name in named)
                raise ConfigurationError(f"{both} both say where the default store is; leave one out")
            if named:
                return named[0]
        return ""

    def read(self, name: str, default: Any, check: Callable[[Any, str], Any]) -> Any:
        value = self.given.get(name, self.conf.get(name))
        return default if value is None else check(value, self.where(name))


def _from_conf(conf: Any) -> dict[str, Any]:
    """Return our settings in ``conf`` by their short names; what code set late beats the configuration."""
    namespace = conf.prefix or ""
    lead = "DEDUPE_" if namespace.isupper() else "dedupe_"
    values: dict[str, Any] = {}
    for mapping in reversed(conf.maps):
        for start in dict.fromkeys((namespace + lead, "dedupe_")):
            for key in [key for key in mapping if isinstance(key, str) and key.startswith(start)]:
                name = key[len(start) :].lower()
                if name not in _NAMES:
                    known = [start + (name.upper() if start.isupper() else name) for name in _NAMES]
                    raise ConfigurationError(f"{key} is no setting; {choices(key, known)}")
                values[name] = mapping[key]
        upper = [
            key for key in mapping if not namespace and key in {f"DEDUPE_{name.upper()}" for name in _NAMES}
        ]
        if upper:
            raise ConfigurationError(
                f"{upper[0]} is not read; write it in lower case, as Celery's own settings"
            )
    return values


def _stores(conf: Any, found: _Source) -> dict[str, Address]:
    stores: dict[str, Address] = found.read("stores", {}, read_addresses)
    options = found.read("store_options", {}, _mapping)
    source = found.default_from()
    if source == "stores":
        if options:
            raise ConfigurationError(
                f"{found.where('store_options')} is for dedupe_url; write the options of "
                f"{stores[DEFAULT].where} beside its URL: {{'url': ..., 'options': {{...}}}}"
            )
    elif source == "client":
        stores[DEFAULT] = Address("client=", None, options, found.given["client"])
    elif source == "url":
        url = found.read("url", None, lambda value, where: check_url(value, where=where))
        stores[DEFAULT] = Address(found.where("url"), url, options)
    else:
        try:
            url, inherited = _shared(conf)
            stores[DEFAULT] = Address("dedupe_url", url, {**inherited, **options})
        except ConfigurationError:
            if not stores:
                raise
    return dict(sorted(stores.items(), key=lambda item: item[0] != DEFAULT))  # the default first


def _shared(conf: Any) -> tuple[str, dict[str, Any]]:
    return shared_server(
        Server(setting, getattr(conf, setting), conf.get(tls), conf.get(options) or {})
        for setting, tls, options in (
            ("result_backend", "redis_backend_use_ssl", "result_backend_transport_options"),
            ("broker_url", "broker_use_ssl", "broker_transport_options"),
            ("broker_write_url", "broker_use_ssl", "broker_transport_options"),
            ("broker_read_url", "broker_use_ssl", "broker_transport_options"),
        )
    )


def _check_vocabulary(policies: Mapping[str, Any], defaults: Mapping[str, Any], found: _Source) -> None:
    for name, value in defaults.items():
        read_field(name, value, where=found.where("defaults"))
    for name, value in policies.items():
        where = f"{found.where('policies')}[{name!r}]"
        if name in LOCKS:
            raise ConfigurationError(f"{where} has the name of a lock; give the policy another")
        parse_policies(value, where=where, defaults=defaults, named=policies)


def _mode(value: Any, where: str) -> Any:
    if value not in get_args(Mode):
        raise ConfigurationError(f"{where} {value!r} is no mode; {choices(value, get_args(Mode))}")
    return value


def _mapping(value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise ConfigurationError(
            f"{where} is of type {type(value).__name__}; write a dict with names as keys"
        )
    for name in value:
        if not isinstance(name, str):
            raise ConfigurationError(f"{where} has the key {name!r}; write a dict with names as keys")
    return value


def _prefix(value: Any, where: str) -> Any:
    if not isinstance(value, str) or not _PREFIX.fullmatch(value):
        raise ConfigurationError(f"{where} {value!r} may hold letters, digits and . : _ - only")
    return value


def _flag(value: Any, where: str) -> Any:
    if not isinstance(value, bool):
        raise ConfigurationError(f"{where} {value!r} is neither True nor False")
    return value
