"""Memory, fakeredis and a real Valkey pace starts as a plain model does, step by step."""

from __future__ import annotations

import uuid
from typing import Any

import fakeredis
import pytest
import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from celery_dedupe.core.asks import Attempt, BeginAsk, Begun, Later, RateAsk
from celery_dedupe.store.memory import MemoryStore
from tests.harness.servers import ValkeyServer
from tests.properties.store_model import Model
from tests.properties.test_store_machine import YEAR_2100, TurnedRedisStore

# They meet on one key, as the rates of a function do.
RATES = [(1, 200_000), (2, 400_000), (3, 1_000_001), (5, 1_000_001)]
SILENCE = 300_000
STEPS = (-9_000_000, -1, 0, 1, 60_000, 200_000, 200_001, 400_000, 700_000, 1_000_001, 1_100_001, 9_000_000)


class RateMachine(RuleBasedStateMachine):
    def __init__(self, clients: list[redis.Redis]) -> None:
        super().__init__()
        self.clients = clients
        self.key = f"dedupe-test:{uuid.uuid4().hex}"
        self.model = Model(YEAR_2100)
        stores = (TurnedRedisStore(client, f"{self.key}:clock") for client in clients)
        self.stores = [MemoryStore(lambda: self.model.tick), *stores]
        self.promised: list[int] = []
        self.starts: list[int] = []

    def turn(self, micros: int) -> None:
        self.model.tick += micros
        for client in self.clients:
            client.set(f"{self.key}:clock", self.model.tick)

    def everywhere(self, ask: Any, expected: Any) -> None:
        for store in self.stores:
            reply = ask(store)
            assert reply == expected, f"{type(store).__name__}: {reply}; the model: {expected}"
            assert store.read(self.key) == self.model.read(self.key), type(store).__name__

    @initialize()
    def start(self) -> None:
        self.turn(0)

    @rule(micros=st.sampled_from(STEPS))
    def time_passes(self, micros: int) -> None:
        self.turn(micros)

    @rule(rate=st.sampled_from(RATES), patience=st.sampled_from((0, 250_000)), reserves=st.booleans(),
          slot=st.none() | st.integers(0, 9), times=st.integers(1, 5))  # fmt: skip
    def come(
        self, rate: tuple[int, int], patience: int, reserves: bool, slot: int | None, times: int
    ) -> None:
        known = slot is not None and slot < len(self.promised)
        shown = self.promised.pop(slot or 0) if known else 0
        for _ in range(times):
            ask = RateAsk(*rate, shown, reserves, patience, 2 * rate[1] + SILENCE)
            asks = [BeginAsk(self.key, slot=False, rate=ask)]
            expected = self.model.begin(asks, Attempt("t", "t"))
            self.everywhere(lambda store, asks=asks: store.begin(asks, Attempt("t", "t")), expected)
            if isinstance(expected, Later) and expected.slots[0]:
                self.promised.append(expected.slots[0])
            assert isinstance(expected, (Begun, Later))
            shown = 0

    @rule(place=st.integers(0, 9), twice=st.booleans())
    def leave(self, place: int, twice: bool) -> None:
        if place < len(self.promised):
            slots = {self.key: self.promised.pop(place)}
            for _ in range(2 if twice else 1):
                expected = self.model.withdraw([self.key], "t", False, slots)
                self.everywhere(lambda store: store.withdraw([self.key], "t", slots=slots), expected)

    @rule(
        rate=st.sampled_from(RATES), crowd=st.integers(2, 9), place=st.integers(0, 8), late=st.integers(-1, 1)
    )
    def one_leaves_and_another_comes_at_its_time(
        self, rate: tuple[int, int], crowd: int, place: int, late: int
    ) -> None:
        before = len(self.promised)
        self.come(rate, 0, True, None, crowd)
        if before + place < len(self.promised):
            slot = self.promised[before + place]
            self.leave(before + place, False)
            self.turn(max(slot + late - self.model.tick, 0))
            self.come(rate, 0, True, None, 1)

    def teardown(self) -> None:
        for client in self.clients:
            client.delete(self.key, f"{self.key}:clock")


@pytest.mark.timeout(600)  # three stores, on a machine that may be busy
def test_every_store_paces_starts_as_the_model_does(shared_valkey: ValkeyServer) -> None:
    with redis.Redis.from_url(shared_valkey.store_url) as real, fakeredis.FakeRedis() as fake:
        run_state_machine_as_test(
            lambda: RateMachine([real, fake]),
            settings=settings(max_examples=50, stateful_step_count=30, deadline=None),
        )
