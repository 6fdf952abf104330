"""The rows of the table, by the names that ``make bench ARGS=...`` takes."""

from __future__ import annotations

from tests.benchmarks.figures import Row
from tests.benchmarks.rows import (
    beside_a_million,
    claim,
    contention,
    footprint,
    heartbeat,
    keys,
    memory,
    names,
    node,
    publish,
    round_trips,
    worker,
)

ROWS: dict[str, Row] = {
    "publish": publish.row,
    "names": names.row,
    "keys": keys.row,
    "claim": claim.row,
    "round-trips": round_trips.row,
    "worker": worker.row,
    "heartbeat": heartbeat.row,
    "memory": memory.row,
    "million": beside_a_million.row,
    "contention": contention.row,
    "footprint": footprint.row,
    "node": node.row,
}
