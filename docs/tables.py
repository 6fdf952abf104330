"""Writes the tables of the documentation that the code has already: ``python docs/tables.py``."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints
from uuid import UUID

from celery import Celery

from celery_dedupe import ConfigurationError, Dedupe, Policy
from celery_dedupe.core.canonical import canonical
from celery_dedupe.core.durations import Duration
from celery_dedupe.core.fields import FIELDS, misfit
from celery_dedupe.core.keyspecs import KeySource
from celery_dedupe.core.locks import LOCKS, RATE
from celery_dedupe.core.rates import RateSource

FOLDER = Path(__file__).parent
DURATION = set(get_args(Duration))
WORDS = {
    Duration: "a duration",
    KeySource: "see [keys](keys.md)",
    RateSource: "see [rates](rates.md)",
    NoneType: "`None`",
    bool: "`True`, `False`",
    int: "a whole number",
    str: "a text",
    list[str]: "a list of names",
    tuple[str, ...]: "a list of names",
}
UNUSUAL = 9.0  # a value that is no field's default, so that it has to be asked who can use it


def fields() -> str:
    """Every field of a policy: what it takes, what it is unless set, which locks it is for."""
    hints = get_type_hints(Policy.__init__)
    defaults = Policy.__init__.__kwdefaults__ or {}
    rows = ["| field | takes | default | for |", "|---|---|---|---|"]
    for name in FIELDS:
        default = repr(defaults[name]).replace("'", '"')
        rows.append(f"| `{name}` | {_takes(hints[name])} | `{default}` | {_users(name)} |")
    return "\n".join(rows)


MISTAKES = (
    'dedupe_mode = "enforced"',
    'dedupe_rules = {"etl.*": "until_done"}',
    'dedupe_rules = {"etl.*": {"lease": "5 minutes"}}',
    'dedupe_rules = {"etl.*": {"lock": "until_expired"}}',
    'dedupe_rules = {"etl.*": {"lock": "until_started", "lease": "5m"}}',
    'dedupe_rules = {"etl.load": {"key": ["tabel"]}}',
)


def mistakes() -> str:
    """What is said of some lines of configuration, in a project with a task ``etl.load(table)``."""
    rows = ["| written | said |", "|---|---|"]
    return "\n".join([*rows, *(f"| `{line}` | `{_said(line)}` |" for line in MISTAKES)])


VALUES = (
    ("(1, 2)", "[1, 2]"),
    ("1", "True"),
    ("1", "1.0"),
    ("1", '"1"'),
    ("None", '""'),
    ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}'),
    ('{1: "a"}', '{"1": "a"}'),
    ("{1, 2}", "{2, 1}"),
    ("{1, 2}", "[1, 2]"),
    ('UUID("12345678123456781234567812345678")', '"12345678-1234-5678-1234-567812345678"'),
    ("datetime(2030, 1, 1)", '"2030-01-01T00:00:00"'),
    ('Decimal("1.10")', 'Decimal("1.1")'),
    ("Colour.RED", '"RED"'),
)


class Colour(Enum):
    """Stands for an enumeration of the project."""

    RED = "red"


def values() -> str:
    """Which values make one key, and which make two."""
    known = {"UUID": UUID, "datetime": datetime, "Decimal": Decimal, "Colour": Colour}
    rows = ["| one call has | another has | they make |", "|---|---|---|"]
    for pair in VALUES:
        texts = {canonical(eval(value, known)) for value in pair}
        rows.append(f"| `{pair[0]}` | `{pair[1]}` | {'one key' if len(texts) == 1 else '**two keys**'} |")
    return "\n".join(rows)


TABLES = {"settings.md": {"fields": fields, "mistakes": mistakes}, "keys.md": {"values": values}}


def written(page: str) -> str:
    """Return the page with its tables as they should be."""
    text = (FOLDER / page).read_text(encoding="utf-8")
    for name, table in TABLES[page].items():
        before, begin, rest = text.partition(f"<!-- table: {name} -->\n")
        _, end, after = rest.partition("<!-- end of table -->")
        text = f"{before}{begin}{table()}\n{end}{after}"
    return text


def _load(table: str) -> None: ...


def _said(line: str) -> str:
    settings: dict[str, Any] = {}
    exec(line, settings)
    app = Celery("proj", broker="memory://", set_as_current=False)
    app.task(_load, name="etl.load", shared=False)
    usual = {"dedupe_url": "memory://"}
    app.conf.update(usual | {name: value for name, value in settings.items() if name.startswith("dedupe_")})
    dedupe = Dedupe(app).init_app()
    try:
        dedupe.check()
    except ConfigurationError as error:
        return str(error)
    finally:
        dedupe.close()
    raise AssertionError(f"{line} is no mistake")


def _takes(kind: Any) -> str:
    parts = [kind] if kind in WORDS or get_origin(kind) is Literal else get_args(kind) or [kind]
    if set(parts) >= DURATION:
        parts = [Duration, *(part for part in parts if part not in DURATION)]
    return ", ".join(dict.fromkeys(word for part in parts for word in _words(part)))


def _words(part: Any) -> list[str]:
    if get_origin(part) is Literal:
        return [f'`"{word}"`' for word in get_args(part)]
    return [WORDS[part]]


def _users(name: str) -> str:
    users = [f"`{lock.name}`" for lock in LOCKS.values() if not misfit(name, lock, UNUSUAL)]
    users = ["every lock"] if len(users) == len(LOCKS) else users
    return ", ".join([*users, *([] if misfit(name, RATE, UNUSUAL) else ["a rate"])])


if __name__ == "__main__":
    for page in TABLES:
        (FOLDER / page).write_text(written(page), encoding="utf-8")
