"""What stands under a key, part by part, as people see it and free it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from celery_dedupe.core.asks import EvictAsk
from celery_dedupe.core.parts import FOREVER
from celery_dedupe.core.record import Record

HoldingState = Literal["queued", "running", "done", "lapsed"]
STATES: tuple[HoldingState, ...] = get_args(HoldingState)


@dataclass(frozen=True, slots=True)
class Holding:
    """One part of a record that stands in somebody's way.

    Attributes:
        state: ``"queued"``, ``"running"``, ``"done"``, or ``"lapsed"``: a run of work that is to be done once
            whose lease is dead, its end not known.
        task_id: who holds it.
        since: ms of the store's clock; of a lapsed run, of its worker's.
        expires_at: ms of the store's clock, when it ends unless renewed; ``None`` if it never does.
        owner: what an operator's release is checked against: a run's token, else the task id.
        node: the worker of a run, ``""`` where none is known.
        fence: of a run, else 0.
    """

    state: HoldingState
    task_id: str
    since: int
    expires_at: int | None
    owner: str
    node: str = ""
    fence: int = 0


def holdings(record: Record) -> tuple[Holding, ...]:
    """The parts of a record that block somebody, or may; marks between copies of one message are none."""
    return tuple(_parts(record))


def evict_ask(key: str, parts: Iterable[Holding]) -> EvictAsk:
    """What frees these parts of a lock, and no others that may have come in their place."""
    owners: dict[str, list[str]] = {state: [] for state in STATES}
    for part in parts:
        owners[part.state].append(part.owner)
    tokens = (*owners["running"], *owners["lapsed"])
    return EvictAsk(key, tuple(owners["queued"]), tokens, "".join(owners["done"]))


def _parts(record: Record) -> Iterator[Holding]:
    for waiting in record.queued:
        yield Holding("queued", waiting.task_id, waiting.since, waiting.expires_at, waiting.task_id)
    for run in record.running:
        # A fence is the server's clock at the start, in microseconds.
        since = run.fence // 1000
        yield Holding("running", run.task_id, since, run.expires_at, run.token, run.node, run.fence)
    if done := record.done:
        expires_at = None if done.expires_at == FOREVER else done.expires_at
        yield Holding("done", done.task_id, done.since, expires_at, done.task_id)
    for trace in record.traces:
        if record.run(trace.token) is None:
            yield Holding("lapsed", trace.task_id, trace.started, trace.expires_at, trace.token)
