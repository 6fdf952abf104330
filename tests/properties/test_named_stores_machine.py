"""Locks in two stores, asked one after the other: whoever is refused holds no more than before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from celery_dedupe.core.asks import Attempt, BeginAsk, Begun, Caller, ClaimAsk, FinishAsk, LeaseAsk, Over
from celery_dedupe.core.record import Record
from celery_dedupe.errors import StoreUnavailable
from celery_dedupe.store.memory import MemoryStore
from celery_dedupe.store.named import Stores

LIMITS = {"a": 1, "ledger/a": 1, "b": 2, "ledger/b": 2}
IDS = ("t1", "t2", "t3")
MINUTE = 60_000
keys = st.lists(st.sampled_from(sorted(LIMITS)), min_size=1, max_size=4, unique=True)
ids = st.sampled_from(IDS)
states = st.sampled_from([frozenset(names) for names in (("queued",), ("queued", "running", "done"))])
outcomes = st.sampled_from(("free", "done", "queued"))


class Flaky(MemoryStore):
    """Fails when told."""

    down = False

    def _writes(self) -> None:
        if self.down:
            raise StoreUnavailable("away")

    def claim(self, *args: Any) -> Any:
        self._writes()
        return super().claim(*args)

    def begin(self, *args: Any) -> Any:
        self._writes()
        return super().begin(*args)

    def finish(self, *args: Any, **named: Any) -> Any:
        self._writes()
        return super().finish(*args, **named)

    def withdraw(self, *args: Any, **named: Any) -> Any:
        self._writes()
        return super().withdraw(*args, **named)


class NamedStoresMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1_700_000_000_000_000
        self.parts = {name: Flaky(self.tick) for name in ("default", "ledger")}
        self.stores = Stores(self.parts)
        for place in self.stores.places.values():
            place.breaker._clock = lambda: self.now / 1e6

    def tick(self) -> int:
        self.now += 1
        return self.now

    def records(self) -> dict[str, Record]:
        return {key: self.stores.read(key) for key in LIMITS}

    @rule(ms=st.sampled_from((1, 10_000, 70_000)))
    def time_passes(self, ms: int) -> None:
        self.now += ms * 1000

    @rule(names=keys, who=ids, blocked_by=states)
    def claim(self, names: list[str], who: str, blocked_by: frozenset[str]) -> None:
        before = self.records()
        reply = self.stores.claim([ClaimAsk(key, MINUTE, blocked_by) for key in names], Caller(who))
        after = self.records()
        if reply is None:
            assert all(who in queued(after[key]) for key in names)
        else:
            assert names[reply.index]
            for key in LIMITS:
                assert queued(after[key]) <= queued(before[key]), "it claimed nothing"
                assert queued(before[key]) - queued(after[key]) <= {who}, "nor took from others"

    @rule(names=keys, who=ids, number=st.integers(1, 2), hold=st.sampled_from((0, MINUTE)))
    def begin(self, names: list[str], who: str, number: int, hold: int) -> None:
        before = self.records()
        attempt = Attempt(who, f"{who}/{number}", f"n{number}")
        asks = [BeginAsk(key, True, LIMITS[key], MINUTE, hold, MINUTE, remembers=True) for key in names]
        reply = self.stores.begin(asks, attempt)
        after = self.records()
        if isinstance(reply, Begun):
            assert [after[key].run(attempt.token).fence for key in names] == list(reply.fences)
            return
        for key in LIMITS:
            gone = tokens(before[key]) - tokens(after[key])
            assert tokens(after[key]) <= tokens(before[key]), "it has taken no slot"
            assert gone <= {attempt.token}, "nor one from others"
        if not isinstance(reply, Over):
            assert names[reply.index]

    @rule(names=keys, who=ids, number=st.integers(1, 2), outcome=outcomes)
    def finish(self, names: list[str], who: str, number: int, outcome: str) -> None:
        before = self.records()
        token = f"{who}/{number}"
        asks = [FinishAsk(key, token, outcome, MINUTE) for key in names]
        found = self.stores.finish(asks, Attempt(who, token), well=True)
        assert found == [token in tokens(before[key]) for key in names]
        assert not any(token in tokens(record) for key, record in self.records().items() if key in names)

    @rule(names=keys, who=ids, number=st.integers(1, 2))
    def renew(self, names: list[str], who: str, number: int) -> None:
        token = f"{who}/{number}"
        expected = [token in tokens(self.stores.read(key)) for key in names]
        assert self.stores.renew([LeaseAsk(key, token, MINUTE) for key in names]) == expected

    @rule(names=keys, who=ids, place=st.sampled_from(("default", "ledger")))
    def a_store_is_away(self, names: list[str], who: str, place: str) -> None:
        before = self.records()
        self.parts[place].down = True
        attempt = Attempt(who, f"{who}/away", "away")
        here = any(key.startswith("ledger/") == (place == "ledger") for key in names)
        claims = [ClaimAsk(key, MINUTE, frozenset({"queued"})) for key in names]
        begins = [BeginAsk(key, True, LIMITS[key], MINUTE, MINUTE) for key in names]
        self.is_not_granted(here, place, lambda: self.stores.claim(claims, Caller(who)) is None)
        self.is_not_granted(here, place, lambda: isinstance(self.stores.begin(begins, attempt), Begun))
        self.parts[place].down = False
        self.now += 6_000_000  # The breaker lets through again.
        after = self.records()
        for key in LIMITS:
            assert others(after[key], who) == others(before[key], who)
            if here:
                assert f"{who}/away" not in tokens(after[key])
        self.stores.withdraw(list(LIMITS), who, running=True)

    def is_not_granted(self, here: bool, place: str, ask: Callable[[], bool]) -> None:
        granted, failed = False, ""
        try:
            granted = ask()
        except StoreUnavailable as error:
            failed = error.store
        assert failed in ("", place)
        assert not (here and granted), "what is granted is granted in every store"
        assert not (failed and not here)

    @invariant()
    def never_more_runs_than_the_limit(self) -> None:
        for key, record in self.records().items():
            assert len(record.running) <= LIMITS[key]


def queued(record: Record) -> set[str]:
    return {part.task_id for part in record.queued}


def tokens(record: Record) -> set[str]:
    return {part.token for part in record.running}


def others(record: Record, who: str) -> tuple[set[str], set[str]]:
    runs = replace(record, running=tuple(part for part in record.running if part.task_id != who))
    return queued(record) - {who}, tokens(runs)


def test_whoever_is_refused_holds_no_more_than_before() -> None:
    run_state_machine_as_test(
        NamedStoresMachine, settings=settings(max_examples=100, stateful_step_count=30, deadline=None)
    )
