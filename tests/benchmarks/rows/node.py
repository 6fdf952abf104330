"""What one server does: its time for each verb, and how many lives of a task it carries a second."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from celery_dedupe.core.asks import Attempt, BeginAsk, Caller, ClaimAsk, FinishAsk, LeaseAsk
from celery_dedupe.store.redis import RedisStore
from celery_dedupe.store.redis_scripts import files_of, script
from tests.benchmarks.figures import Figure, Setting, spread
from tests.benchmarks.rows.claim import HOUR, KEY, UUID
from tests.harness.servers import ValkeyServer

LIVES = 2_000
LEASE = 60_000
Sent = tuple[Any, ...]
TITLES = {
    "claim": "a claim granted",
    "refused": "a claim refused",
    "begin": "a start",
    "renew": "a lease renewed, many in one call",
    "finish": "an end",
}
VERBS = tuple(TITLES)


class _Recorder:
    """Stands for a client, and keeps what it is told to send."""

    def __init__(self) -> None:
        self.sent: Sent = ()

    def execute_command(self, *words: Any, **_: Any) -> list[bytes]:
        self.sent = words
        return []


def row(setting: Setting) -> list[Figure]:
    lives = setting.of(LIVES)
    took: dict[str, list[float]] = {verb: [] for verb in VERBS}
    rates: list[float] = []
    with setting.server() as server:
        for verb in ("claim", "begin", "renew", "finish"):
            server.client().script_load(script("clock", *files_of(verb)))
        for number in range(1, setting.rounds + 1):
            whole = 0.0
            for verb, commands in _scripts(number * lives, lives).items():
                seconds, each = _run(server, {verb: commands})
                took[verb].append(each)
                whole += seconds if verb in ("claim", "begin", "finish") else 0.0
            rates.append(lives / whole)
    chunk = min(RedisStore.chunk, lives)
    took["renew"] = [micros / chunk for micros in took["renew"]]
    return [
        *(_figure(f"the server's time for {TITLES[verb]}", took[verb], " µs", 1) for verb in VERBS),
        _figure("claims, starts and ends of tasks a second, pipelined by one client", rates, "/s", 0),
    ]


def _scripts(first: int, lives: int) -> dict[str, list[Sent]]:
    """The commands of so many lives, verb by verb."""
    recorder = _Recorder()
    store = RedisStore(recorder)  # type: ignore[arg-type] - it is no client, it notes what one would send
    found: dict[str, list[Sent]] = {verb: [] for verb in VERBS}
    numbers = range(first, first + lives)
    for number in numbers:
        for verb, call in _life(store, number).items():
            with suppress(ValueError):  # Nobody has answered.
                call()
            found[verb].append(recorder.sent)
    leases = [LeaseAsk(KEY.format(number), _token(number), LEASE) for number in numbers]
    for some in range(0, lives, store.chunk):
        with suppress(ValueError):
            store.renew(leases[some : some + store.chunk])
        found["renew"].append(recorder.sent)
    return found


def _life(store: RedisStore, number: int) -> dict[str, Callable[[], object]]:
    key, task_id, token = KEY.format(number), UUID.format(number), _token(number)
    attempt = Attempt(task_id, token, f"{number:08x}", 0, "celery@host-1", 1)
    claim = ClaimAsk(key, HOUR, frozenset({"queued", "running"}))
    start = BeginAsk(key, slot=True, limit=1, lease=LEASE, hold=HOUR, mark=HOUR)
    return {
        "claim": lambda: store.claim([claim], Caller(task_id)),
        "refused": lambda: store.claim([claim], Caller("another")),
        "begin": lambda: store.begin([start], attempt),
        "finish": lambda: store.finish([FinishAsk(key, token, "free")], attempt, well=True),
    }


def _token(number: int) -> str:
    return f"{number:016x}"


def _run(server: ValkeyServer, commands: dict[str, list[Sent]]) -> tuple[float, float]:
    """Seconds for all of them, and the server's microseconds for each."""
    client = server.client()
    client.config_resetstat()
    started = time.perf_counter()
    for sent in commands.values():
        pipe = client.pipeline(transaction=False)
        for words in sent:
            pipe.execute_command(*words)
        pipe.execute()
    seconds = time.perf_counter() - started
    stats = client.info("commandstats")["cmdstat_evalsha"]
    return seconds, stats["usec"] / stats["calls"]


def _figure(what: str, values: list[float], unit: str, digits: int) -> Figure:
    return Figure(what, f"{statistics.median(values):,.{digits}f}{unit}", spread(values, digits))
