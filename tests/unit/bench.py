"""A guard on its own: a store in memory, a clock that the test turns, and what it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from celery_dedupe import Policy
from celery_dedupe.core.call import Call
from celery_dedupe.core.places import placed
from celery_dedupe.core.ticket import Ticket
from celery_dedupe.guard import Guard, claims, runs
from celery_dedupe.guard.claims import Drop
from celery_dedupe.store.breaker import Breaker
from tests.unit.conftest import EVENTS, Clock, TestedStore


class Bench:
    """A guard with one task's policies, a store of its own and a clock that the test turns.

    It has a store more for each that a policy names.
    """

    def __init__(self, *policies: Policy, observe: bool = False, app: object = None) -> None:
        self.clock = Clock()
        names = ("default", *(policy.store for policy in policies))
        self.stores = {name: TestedStore(self.clock) for name in dict.fromkeys(names)}
        self.store = self.stores["default"]
        self.states: dict[str, str] = {}
        self.asked: list[str] = []
        self.app = app or object()
        self.guard = Guard(self.stores, counted_as="stats", app=self.app, state_of=self._state_of)
        for place in self.guard.store.places.values():
            # Its pause ends with the store's clock.
            place.breaker = Breaker(place.name, lambda: self.clock() / 1e6)
        self.breaker = self.guard.store.first.breaker
        self.policies = tuple(replace(policy, observe=observe or policy.observe) for policy in policies)
        self.events: list[Any] = []
        for signal in EVENTS:
            signal.connect(self._note, sender=self.app)

    def claim(self, task_id: str, **fields: Any) -> Drop | bool:
        return claims.claim(self.guard, call(task_id), self.policies, self.ticket(task_id, **fields))

    def begin(self, task_id: str, *, ended_well: Callable[[], bool] = lambda: False, **fields: Any) -> Any:
        ticket = self.ticket(task_id, **fields)
        return runs.begin(
            self.guard, call(task_id), self.policies, ticket, "w1@unit", not_needed, ended_well=ended_well
        )

    def ticket(self, task_id: str, **fields: Any) -> Ticket:
        keys = tuple(placed(f"k{number}", policy.store) for number, policy in enumerate(self.policies))
        return Ticket(**{"keys": keys, "nonce": f"nonce of {task_id}", **fields})

    def told(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def close(self) -> None:
        self.guard.close()
        for signal in EVENTS:
            signal.disconnect(self._note, sender=self.app)

    def _note(self, app: Any, event: Any) -> None:
        self.events.append(event)

    def _state_of(self, task_id: str, since: int) -> str | None:
        self.asked.append(task_id)
        return self.states.get(task_id)


def call(task_id: str, **fields: Any) -> Call:
    return Call("t", task_id, (1,), {}, None, **fields)


def not_needed() -> Callable[[], None]:
    raise AssertionError("no policy wants its run stopped")


def share(*benches: Bench) -> None:
    """Several workers on one store."""
    for each in benches:
        each.guard.store.places["default"].store = benches[0].store
