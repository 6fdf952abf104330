"""The text of a record in a row: JSON that names every field, so that people and SQL can read it too."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, get_args, get_origin, get_type_hints

from celery_dedupe.core.record import Record

_HINTS = get_type_hints(Record)


def write(record: Record) -> str:
    """The record's text; empty for an empty record."""
    if not record:
        return ""
    parts = {name: value for name, value in asdict(record).items() if value}
    return json.dumps(parts, separators=(",", ":"))


def read(text: str) -> Record:
    """A record from its text. Raises ``ValueError`` if it is not one."""
    if not text:
        return Record()
    try:
        return Record(**{name: _part(_HINTS[name], value) for name, value in json.loads(text).items()})
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{text[:100]!r} is not a record") from error


def _part(hint: Any, value: Any) -> Any:
    kind = get_args(hint)[0]
    if get_origin(hint) is tuple:
        return tuple(kind(**one) for one in value)
    return kind(**{name: tuple(one) if isinstance(one, list) else one for name, one in value.items()})
