"""What a key costs, against kombu's own JSON of the same arguments, which every publish makes anyway."""

from __future__ import annotations

import inspect
from typing import Any

from kombu.utils.json import dumps

from celery_dedupe.core.call import Call
from celery_dedupe.core.keys import make_key
from celery_dedupe.core.policy import Policy
from tests.benchmarks.figures import Figure, Setting, ratio
from tests.benchmarks.lanes import Work, in_turn, lanes

SMALL = "three small arguments"
TEXT = "an argument of 1 MB, a text"
NESTED = "an argument of 1 MB, 10,000 mappings in a list"


def row(setting: Setting) -> list[Figure]:
    figures = []
    for what, at_most in ((SMALL, 3.0), (TEXT, 1.5), (NESTED, 1.5)):
        with lanes({"key": (key_of, what), "dumps": (dumps_of, what)}) as contenders:
            found = in_turn(contenders, setting.rounds)
        title = f"key of a call with {what}, against kombu's `dumps` of the same"
        figures.append(ratio(title, found["key"], found["dumps"], at_most=at_most))
    return figures


def task(customer: object, year: str, draft: bool = False) -> None: ...


def _arguments(what: str) -> tuple[list[Any], dict[str, Any]]:
    line = {"sku": "A-1000", "count": 3, "price": 12.5, "tags": ["new", "red"], "note": "left of the door"}
    customer = {SMALL: 4711, TEXT: "x" * 1_000_000, NESTED: [{**line, "id": n} for n in range(10_000)]}[what]
    return [customer, "2026"], {"draft": True}


def key_of(what: str) -> Work:
    args, kwargs = _arguments(what)
    names = {"call": Call("reports.make", "id", args, kwargs, inspect.signature(task)), "policy": Policy()}
    return "make_key(call, policy, prefix='dedupe')", {**names, "make_key": make_key}


def dumps_of(what: str) -> Work:
    return "dumps(arguments)", {"dumps": dumps, "arguments": _arguments(what)}
