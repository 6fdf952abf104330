"""One person's program: calls tasks when told to, and says what came of it. Ends with its standard input.

An order is a line of JSON, and so is the answer:

    {"call": "legacy.reports.make", "args": ["acme"], "times": 2}    [{"at": ..., "id": ..., ...}, ...]
    {"collect": 30}, seconds to wait at most                         the results of all calls so far
"""

from __future__ import annotations

import json
import os
import sys
import time
from queue import SimpleQueue
from threading import Thread
from typing import Any

from legacy.app import app

from celery_dedupe import duplicate_of


def call(task: str, args: list[Any], results: list[Any]) -> dict[str, Any]:
    """Call a task as the code base always did; then look at what ``delay`` returned."""
    at = time.monotonic()
    result = app.tasks[task].delay(*args)
    results.append(result)
    found = duplicate_of(result)
    return {
        "at": at,
        "until": time.monotonic(),
        "id": result.id,
        "state": found.state if found else None,
        "duplicate": found is not None,
    }


def listen(orders: SimpleQueue[Any]) -> None:
    """Take orders, and end this program with the last one, whatever it waits for: its server may be gone."""
    for line in sys.stdin:
        orders.put(json.loads(line))
    os._exit(0)


def main() -> None:
    app.loader.import_default_modules()
    # A program that has been up for a while: its first call is as fast as the next ones.
    with app.producer_or_acquire() as producer:
        producer.connection.ensure_connection()
    app.backend.client.ping()
    print(json.dumps("ready"), flush=True)
    orders: SimpleQueue[Any] = SimpleQueue()
    Thread(target=listen, args=[orders], daemon=True).start()
    results: list[Any] = []
    while True:
        order = orders.get()
        if "collect" in order:
            answer = [result.get(timeout=order["collect"]) for result in results]
        else:
            answer = [call(order["call"], order["args"], results) for _ in range(order["times"])]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
