"""The one text of a value: two values have the same text exactly where Celery's JSON delivers the same.

The text is JSON without spaces, mappings sorted. What JSON cannot carry but has a stable form (a plain enum,
a set, a dataclass) begins with ``!``, which no JSON value does, so that no other value can pass for it.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Collection, Mapping
from hashlib import sha256
from json.encoder import encode_basestring
from typing import Any

from kombu.utils.json import JSONEncoder, dumps, loads

_LONG = 1000
_ENCODER = JSONEncoder()
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class NoCanonicalForm(ValueError):
    """A value has no text that is the same in every process. The message names its type, never the value."""


def quoted(text: str) -> str:
    """Return the text of a string: of a long one, its digest."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            # Half characters may be two of a pair, which JSON delivers as the one character.
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    if len(text) > _LONG:
        return f'!sha256["{sha256(encoded(text)).hexdigest()}"]'
    return encode_basestring(text)


def encoded(text: str) -> bytes:
    """Return the bytes of a text in which half characters may stand alone."""
    return text.encode("utf-8", "surrogatepass")


def canonical(value: object) -> str:
    """Return the text of ``value``.

    Raises:
        NoCanonicalForm: neither Celery's JSON nor this module has a stable form for it, or for what it holds.
    """
    try:
        return _text(value)
    except RecursionError:
        raise NoCanonicalForm("it is nested too deeply, or contains itself") from None


def key_text(key: object) -> str:
    """Return the text under which JSON delivers the key of a mapping.

    Raises:
        NoCanonicalForm: JSON has no keys of this type.
    """
    if isinstance(key, str):
        return quoted(key)
    if key is None or isinstance(key, (bool, int, float)):
        return f'"{_text(key)}"'
    raise NoCanonicalForm(f"a mapping has a key of type {_path(type(key))}, which JSON cannot carry")


def absent(task: str) -> str:
    """Return the text of an argument that a call of ``task`` leaves to a default unknown here."""
    return f"!absent[{quoted(task)}]"


def _text(value: Any) -> str:
    return _WRITERS.get(type(value), _subclass)(value)


def _subclass(value: Any) -> str:
    for kind in (str, int, float, list, tuple, dict):
        if isinstance(value, kind):
            return _WRITERS[kind](value)
    try:
        reduced = _ENCODER.default(value)
    except TypeError:
        return _tagged(value)
    return _members(reduced) if _is_envelope(reduced) else _text(reduced)


def _int(value: int) -> str:
    try:
        return int.__repr__(value)
    except ValueError:
        raise NoCanonicalForm("a whole number has more digits than Python converts to text") from None


def _float(value: float) -> str:
    text = float.__repr__(value)
    return _NOT_FINITE.get(text, text)


def _sequence(values: Collection[Any]) -> str:
    return f"[{','.join([_WRITERS.get(type(value), _subclass)(value) for value in values])}]"


def _mapping(value: dict[Any, Any]) -> str:
    if _is_envelope(value):
        return _enveloped(value)
    return _members(value)


def _members(value: Mapping[Any, Any]) -> str:
    # Of two keys that JSON makes one, its loader keeps the later, and so does this dict.
    members = {key_text(key): _WRITERS.get(type(item), _subclass)(item) for key, item in value.items()}
    return f"{{{','.join([f'{key}:{members[key]}' for key in sorted(members)])}}}"


def _is_envelope(value: object) -> bool:
    return isinstance(value, dict) and len(value) == 2 and "__type__" in value and "__value__" in value


def _enveloped(value: dict[Any, Any]) -> str:
    """Return the text of what kombu's decoder makes of a mapping that looks like its own encoding."""
    try:
        decoded = loads(dumps(value))
    except Exception:  # noqa: BLE001 - whatever the decoder cannot read is a mapping like any other
        return _members(value)
    return _members(decoded) if isinstance(decoded, dict) else _text(decoded)


def _tagged(value: Any) -> str:
    kind = type(value)
    if isinstance(value, enum.Enum):
        # The name of a combined flag is another one in each version of Python.
        member = value.value if isinstance(value, enum.Flag) else value.name
        return f"!enum[{quoted(_path(kind))},{_text(member)}]"
    if isinstance(value, (set, frozenset)):
        return f"!set[{','.join(sorted([_text(item) for item in value]))}]"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        members = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return f"!dataclass[{quoted(_path(kind))},{_members(members)}]"
    raise NoCanonicalForm(f"a value of type {_path(kind)} has no canonical form")


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


_WRITERS: dict[type, Callable[[Any], str]] = {
    str: quoted,
    bool: lambda value: "true" if value else "false",
    int: _int,
    float: _float,
    type(None): lambda value: "null",
    list: _sequence,
    tuple: _sequence,
    dict: _mapping,
}
