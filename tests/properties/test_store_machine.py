"""Memory, fakeredis, a real Valkey and databases do what a plain model does, step by step."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import fakeredis
import pytest
import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy import BigInteger, Engine, bindparam, delete, select

from celery_dedupe.core.asks import (
    Attempt,
    BeginAsk,
    Begun,
    Caller,
    ClaimAsk,
    EvictAsk,
    FinishAsk,
    Later,
    LeaseAsk,
    RateAsk,
)
from celery_dedupe.core.record import Record
from celery_dedupe.store import redis_text, sql_text
from celery_dedupe.store.memory import MemoryStore
from celery_dedupe.store.redis import RedisStore
from celery_dedupe.store.redis_scripts import files_of, script
from celery_dedupe.store.sql import SqlStore
from celery_dedupe.store.sql_client import open_sql
from celery_dedupe.tables import claims, create_tables
from tests.harness.servers import ValkeyServer
from tests.properties.store_model import Model

YEAR_2100 = 4_102_444_800_000_000  # microseconds; no server drops a key before its time in the model
CLOCK = """
local tick = tonumber(redis.call('GET', '{key}'))
local now = math.floor(tick / 1000)
"""

LIMITS = {"a": 1, "b": 2, "c": 3}
IDS = ("t1", "t2", "t 3", "t4")
TOKENS = tuple(f"{task_id}/{number}" for task_id in IDS for number in (1, 2))
TIMES = (1, 400, 5000, 60_000)  # ms

keys = st.sampled_from(sorted(LIMITS))
ids = st.sampled_from(IDS)
counts = st.integers(0, 2)
times = st.sampled_from(TIMES)
ttls = st.just(0) | times
ended = st.lists(st.sampled_from(TOKENS), max_size=2).map(tuple)
some_ids = st.lists(ids, max_size=2).map(tuple)
states = st.sampled_from(
    [frozenset(names) for names in ((), ("queued",), ("running",), ("queued", "running", "done"))]
)


def lists_of(asks: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(asks, min_size=1, max_size=3)


attempts = st.builds(
    lambda task_id, number, nonce, generation, ended: Attempt(
        task_id, f"{task_id}/{number}", nonce, generation, "node", 7, ended
    ),
    ids,
    st.sampled_from((1, 2)),
    st.sampled_from(("", "n")),
    counts,
    ended,
)
begins = st.builds(
    lambda key, slot, lease, hold, mark, remembers, most, counted: (
        key, slot, LIMITS[key], lease, hold, mark, remembers, 0, most, counted if most else 0,
    ),
    keys,
    st.booleans() | st.just(True),
    times,
    ttls,
    ttls,
    st.booleans(),
    st.sampled_from((0, 0, 1, 2)),
    times,
)  # fmt: skip
PATIENCE, SILENCE = 250_000, 3_000_000
rates = st.sampled_from([(1, 400_000), (2, 1_000_001), (3, 5_000_000)])
wishes = st.sampled_from(("forget", "keep", "undo"))
outcomes = st.sampled_from(("free", "done", "queued", "withdrawn"))


class TurnedRedisStore(RedisStore):
    """Takes the time from a key, so that a test can turn it."""

    def __init__(self, client: redis.Redis, clock: str) -> None:
        super().__init__(client)
        self._time = CLOCK.format(key=clock)

    def _source(self, verb: str) -> str:
        return self._time + script(*files_of(verb))


def in_order(record: Record) -> Record:
    """Marks are looked up by what they name, so their order says nothing."""
    return replace(record, ended=tuple(sorted(record.ended, key=lambda part: (part.task_id, part.nonce))))


def turned_sql_store(engine: Engine, tick: Callable[[], int]) -> SqlStore:
    return SqlStore(engine, timeout=60, clock=bindparam("tick", type_=BigInteger, callable_=tick))


class StoreMachine(RuleBasedStateMachine):
    def __init__(self, clients: list[redis.Redis], engines: list[Engine]) -> None:
        super().__init__()
        self.clients = clients
        self.engines = engines
        self.prefix = f"dedupe-test:{uuid.uuid4().hex}"
        self.model = Model(YEAR_2100)
        self.stores = [
            MemoryStore(lambda: self.model.tick),
            *(TurnedRedisStore(client, self.key("clock")) for client in clients),
            *(turned_sql_store(engine, lambda: self.model.tick) for engine in engines),
        ]
        self.promised: list[tuple[str, int]] = []
        self.fences = dict.fromkeys(LIMITS, 0)  # the last one given

    def key(self, name: str) -> str:
        return f"{self.prefix}:{name}"

    def turn(self, micros: int) -> None:
        self.model.tick += micros
        for client in self.clients:
            client.set(self.key("clock"), self.model.tick)

    def everywhere(self, ask: Callable[[Any], Any], expected: Any) -> None:
        for store in self.stores:
            reply = ask(store)
            assert reply == expected, f"{type(store).__name__}: {reply}; the model: {expected}"
        for name in LIMITS:
            record = self.stores[0].read(self.key(name))
            assert in_order(record) == self.expected(name), f"memory, {name}"
        for client in self.clients:
            self.compare(client)
        for engine in self.engines:
            self.compare_rows(engine)

    def compare(self, client: redis.Redis) -> None:
        with client.pipeline(transaction=False) as pipeline:
            pipeline.mget([self.key(name) for name in LIMITS])
            for name in LIMITS:
                pipeline.pexpiretime(self.key(name))
            texts, *ends = pipeline.execute()
        for name, text, end in zip(LIMITS, texts, ends, strict=True):
            record = redis_text.record(text.decode()) if text else None
            live = record.live(self.model.now) if record else Record()
            assert in_order(live) == self.expected(name), f"{client} {name}"
            # -1 is "no TTL" and -2 "no key".
            assert end == (record.expires_at or -1 if record else -2), "a key ends with its last part"

    def compare_rows(self, engine: Engine) -> None:
        with engine.connect() as connection:
            rows = connection.execute(select(claims).where(claims.c.key.startswith(self.prefix))).all()
        found = {row.key: row for row in rows}
        for name in LIMITS:
            row = found.pop(self.key(name), None)
            record = sql_text.read(row.record) if row else Record()
            assert in_order(record.live(self.model.now)) == self.expected(name), f"{engine} {name}"
            assert row is None or (record and row.expires_at == record.expires_at), "no row without a part"
        assert not found

    def expected(self, name: str) -> Record:
        return in_order(self.model.read(self.key(name)))

    @initialize()
    def start(self) -> None:
        self.turn(0)

    @rule(ms=st.sampled_from((0, 1, 399, 400, 6000)))
    def time_passes(self, ms: int) -> None:
        self.turn(ms * 1000)
        self.everywhere(lambda store: store.clock(), self.model.now)

    @rule(asks=lists_of(st.tuples(keys, ttls, states)), who=ids, inside=st.just("") | ids,
          generation=counts, ended=ended)  # fmt: skip
    def claim(self, asks: list[Any], who: str, inside: str, generation: int, ended: tuple[str, ...]) -> None:
        self.turn(1)
        wanted = [ClaimAsk(self.key(key), ttl, blocked_by) for key, ttl, blocked_by in asks]
        caller = Caller(who, inside, generation, ended)
        self.everywhere(lambda store: store.claim(wanted, caller), self.model.claim(wanted, caller))

    @rule(names=lists_of(keys), who=ids, running=st.booleans())
    def withdraw(self, names: list[str], who: str, running: bool) -> None:
        self.turn(1)
        wanted = [self.key(name) for name in names]
        expected = self.model.withdraw(wanted, who, running, {})
        self.everywhere(lambda store: store.withdraw(wanted, who, running=running), expected)

    @rule(asks=lists_of(begins), attempt=attempts, micros=st.sampled_from((0, 1)))
    def begin(self, asks: list[Any], attempt: Attempt, micros: int) -> None:
        self.turn(micros)  # Two may come at once.
        wanted = [BeginAsk(self.key(key), *rest) for key, *rest in asks]
        before = {name: self.model.read(self.key(name)).running for name in LIMITS}
        expected = self.model.begin(wanted, attempt)
        self.everywhere(lambda store: store.begin(wanted, attempt), expected)
        if isinstance(expected, Begun):
            given = {key: fence for (key, *_), fence in zip(asks, expected.fences, strict=True) if fence}
            for name, fence in given.items():
                live = {run.token: run.fence for run in before[name] if run.token not in attempt.ended}
                if attempt.token not in live:
                    self.a_fence_only_ever_grows(name, fence, live.values())

    @rule(asks=st.dictionaries(keys, st.tuples(st.none() | rates, st.booleans(), ttls, st.booleans()),
                               min_size=1), attempt=attempts, again=st.integers(0, 5))  # fmt: skip
    def begin_at_a_rate(self, asks: dict[str, Any], attempt: Attempt, again: int) -> None:
        self.turn(1)
        promised = dict(self.promised[-again:] if again else ())
        wanted = []
        for name, (rate, slot, hold, reserves) in asks.items():
            key = self.key(name)
            ask = rate and RateAsk(*rate, promised.get(key, 0), reserves, PATIENCE, 2 * rate[1] + SILENCE)
            wanted.append(BeginAsk(key, slot, LIMITS[name], 400, hold, rate=ask))
        expected = self.model.begin(wanted, attempt)
        self.everywhere(lambda store: store.begin(wanted, attempt), expected)
        if isinstance(expected, Later):
            self.promised += [(ask.key, at) for ask, at in zip(wanted, expected.slots, strict=True) if at]

    @rule(name=keys, rate=rates, starts=st.integers(2, 8), leave=st.sets(st.integers(0, 9)))
    def many_wait_at_a_rate_and_some_leave(
        self, name: str, rate: tuple[int, int], starts: int, leave: set[int]
    ) -> None:
        for _ in range(starts):
            self.begin_at_a_rate({name: (rate, False, 0, True)}, Attempt("t", "t"), 0)
        gone = [self.promised[-1 - place] for place in leave if place < len(self.promised)]
        for key, slot in gone:
            expected = self.model.withdraw([key], "t", False, {key: slot})
            self.everywhere(
                lambda store, key=key, slot=slot: store.withdraw([key], "t", slots={key: slot}), expected
            )

    def a_fence_only_ever_grows(self, name: str, fence: int, live: Iterable[int]) -> None:
        assert all(fence > other for other in live)
        # A clock that has not passed the last one given, though its run is gone already, is a clock at rest.
        assert fence > self.fences[name] or self.model.tick <= self.fences[name]
        self.fences[name] = fence

    @rule(asks=lists_of(st.tuples(keys, st.sampled_from(TOKENS), times)))
    def renew(self, asks: list[Any]) -> None:
        self.turn(1)
        wanted = [LeaseAsk(self.key(key), token, lease) for key, token, lease in asks]
        self.everywhere(lambda store: store.renew(wanted), self.model.renew(wanted))

    @rule(asks=lists_of(st.tuples(keys, st.just("") | st.sampled_from(TOKENS), outcomes, ttls, wishes)),
          attempt=attempts, well=st.booleans())  # fmt: skip
    def finish(self, asks: list[Any], attempt: Attempt, well: bool) -> None:
        self._finish(asks, attempt, well)

    @rule(names=lists_of(keys), outcome=outcomes, ttl=ttls, wish=wishes, attempt=attempts, well=st.booleans())
    def finish_own(
        self, names: list[str], outcome: str, ttl: int, wish: str, attempt: Attempt, well: bool
    ) -> None:
        self._finish([(name, attempt.token, outcome, ttl, wish) for name in names], attempt, well)

    def _finish(self, asks: list[Any], attempt: Attempt, well: bool) -> None:
        self.turn(1)
        wanted = [FinishAsk(self.key(key), *rest) for key, *rest in asks]
        expected = self.model.finish(wanted, attempt, well)
        self.everywhere(lambda store: store.finish(wanted, attempt, well=well), expected)

    @rule(key=keys, who=ids, times=st.tuples(times, times), ends=st.integers(0, 2), well=st.booleans())
    def a_copy_waits_while_the_first_one_runs_and_ends(
        self, key: str, who: str, times: tuple[int, int], ends: int, well: bool
    ) -> None:
        lease, mark = times
        first, copy = (Attempt(who, f"{who}/{number}", "n", 2) for number in (1, 2))
        for attempt in (first, copy):
            self.begin([(key, True, LIMITS[key], lease, 0, mark, False)], attempt, 1)
        if ends:
            self._finish([(key, first.token, "free", 0)] * ends, first, well)

    @rule(key=keys, who=ids, most=st.integers(1, 2), counted=times, lease=times, starts=st.integers(2, 4),
          end=st.none() | wishes)  # fmt: skip
    def a_message_is_delivered_again_and_again(
        self, key: str, who: str, most: int, counted: int, lease: int, starts: int, end: str | None
    ) -> None:
        for _ in range(starts):
            ask = (key, True, LIMITS[key], lease, 0, 0, False, 0, most, counted)
            self.begin([ask], Attempt(who, f"{who}/1", "n", 2), 1)
            if end:
                self._finish([(key, f"{who}/1", "free", 0, end)], Attempt(who, ""), False)
            else:
                self.turn(lease * 1000)

    @rule(asks=lists_of(st.tuples(keys, some_ids, ended, st.just("") | ids)))
    def evict(self, asks: list[Any]) -> None:
        self.turn(1)
        wanted = [EvictAsk(self.key(key), *rest) for key, *rest in asks]
        self.everywhere(lambda store: store.evict(wanted), self.model.evict(wanted))

    @rule(name=keys)
    def read(self, name: str) -> None:
        self.everywhere(lambda store: store.read(self.key(name)), self.model.read(self.key(name)))

    @rule(name=keys)
    def scan(self, name: str) -> None:
        pattern = self.key(f"[{name}]")
        record = self.model.read(self.key(name))
        expected = {self.key(name): record} if record else {}
        self.everywhere(lambda store: dict(store.scan(pattern)), expected)

    @invariant()
    def never_more_runs_than_the_limit_and_one_claim_and_run_a_task(self) -> None:
        for name, limit in LIMITS.items():
            record = self.model.read(self.key(name))  # which is what every store has: see everywhere()
            assert len(record.running) <= limit
            for parts in (record.running, record.queued):
                assert len({part.task_id for part in parts}) == len(parts)

    def teardown(self) -> None:
        for client in self.clients:
            client.delete(*(self.key(name) for name in ("clock", *LIMITS)))
        for engine in self.engines:
            with engine.begin() as connection:
                connection.execute(delete(claims))


def run_machine(clients: list[redis.Redis], engines: list[Engine], examples: int = 50) -> None:
    run_state_machine_as_test(
        lambda: StoreMachine(clients, engines),
        settings=settings(max_examples=examples, stateful_step_count=30, deadline=None),
    )


@pytest.fixture
def open_engine() -> Iterator[Callable[[str], Engine]]:
    """``open_engine(url)``: an engine on a database with the table of claims; closed after the test."""
    opened: list[Engine] = []

    def open_one(url: str) -> Engine:
        with closing(open_sql(f"db+{url}", {"timeout": 60})) as store:
            opened.append(store._engine)
        create_tables(opened[-1], claims)
        return opened[-1]

    yield open_one
    for engine in opened:
        engine.dispose()


@pytest.mark.timeout(600)  # four stores, on a machine that may be busy
def test_every_store_does_what_the_model_does(
    shared_valkey: ValkeyServer, open_engine: Callable[[str], Engine], tmp_path: Path
) -> None:
    with redis.Redis.from_url(shared_valkey.store_url) as real, fakeredis.FakeRedis() as fake:
        run_machine([real, fake], [open_engine(f"sqlite:///{tmp_path}/claims.sqlite")])


@pytest.mark.services
@pytest.mark.timeout(600)
def test_so_do_the_databases_of_servers(
    postgres_url: str, mariadb_url: str, open_engine: Callable[[str], Engine]
) -> None:
    run_machine([], [open_engine(postgres_url), open_engine(mariadb_url)], examples=20)
