"""What it takes to keep 10,000 leases of one process alive."""

from __future__ import annotations

import secrets
import statistics
import time
from contextlib import closing

from celery_dedupe.core.asks import Attempt, BeginAsk, LeaseAsk
from celery_dedupe.store.connect import open_store
from tests.benchmarks.figures import Figure, Setting, spread
from tests.benchmarks.rows.claim import KEY, UUID

LEASE = 60_000
INTERVAL = LEASE / 3000  # seconds


def row(setting: Setting) -> list[Figure]:
    leases = setting.of(10_000)
    with setting.server() as server, closing(open_store(server.store_url)) as store:
        asks = []
        for number in range(leases):
            key, token = KEY.format(number), secrets.token_hex(8)
            ask = BeginAsk(key, slot=True, limit=1, lease=LEASE, hold=0, mark=LEASE)
            nonce = secrets.token_hex(4)
            store.begin([ask], Attempt(UUID.format(number), token, nonce, 0, "celery@host-1", 1))
            asks.append(LeaseAsk(key, token, LEASE))
        store.renew(asks)  # The script is known from here on.
        client = server.client()
        client.config_set("slowlog-log-slower-than", 50)  # µs: the scripts, and not what they do inside
        client.config_set("slowlog-max-len", leases)
        calls, cpu, pauses, busy = [], [], [], []
        for _ in range(setting.rounds):
            client.slowlog_reset()
            before = time.process_time()
            if not all(store.renew(asks)):
                raise RuntimeError("a lease was lost")
            cpu.append((time.process_time() - before) / INTERVAL * 100)
            log = [one for one in client.slowlog_get(-1) if one["command"].startswith(b"EVALSHA")]
            took = [one["duration"] / 1000 for one in log]
            calls.append(len(took))
            pauses.append(max(took))
            busy.append(sum(took) / 1000 / INTERVAL * 100)
    longest = statistics.median(pauses)
    title = f"{leases:,} leases of one process, renewed every {INTERVAL:g} s"
    return [
        _figure(f"{title}: calls an interval", calls, "", "", None, 0),
        _figure(f"{title}: the server's longest pause", pauses, " ms", "below 5 ms", longest < 5),
        _figure(f"{title}: of the process's core", cpu, " %", "below 2 %", statistics.median(cpu) < 2),
        _figure(f"{title}: of the server's core", busy, " %", "", None),
    ]


def _figure(
    what: str, values: list[float], unit: str, goal: str, met: bool | None, digits: int = 2
) -> Figure:
    value = f"{statistics.median(values):.{digits}f}{unit}"
    return Figure(what, value, spread(values, digits), goal, met)
