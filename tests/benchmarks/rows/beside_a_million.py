"""Whether a claim takes longer where 1,000,000 others are."""

from __future__ import annotations

from contextlib import closing
from itertools import islice

from tests.benchmarks.figures import Figure, Setting, ratio
from tests.benchmarks.lanes import in_turn, lanes
from tests.benchmarks.rows.claim import KEY, make_claim
from tests.harness.commands import count_commands
from tests.harness.servers import STORE, ValkeyServer

FAR = 10**15  # Where the numbers of the calls that are measured begin.
NOISE = 1.05


def row(setting: Setting) -> list[Figure]:
    others = setting.of(1_000_000)
    with setting.server() as empty, setting.server() as full:
        bytes_each = fill(full, others)
        makers = {"empty": (make_claim, empty.store_url, FAR), "full": (make_claim, full.store_url, FAR)}
        with lanes(makers) as contenders:
            found = in_turn(contenders, setting.rounds * 3)
            commands = []
            for server, lane in ((empty, contenders["empty"]), (full, contenders["full"])):
                with count_commands(server) as seen:
                    lane.time(10)
                commands.append(seen.names(db=STORE))
    title = f"a claim beside {others:,} others, against one in an empty server"
    same = commands[0] == commands[1]
    return [
        ratio(title, found["full"], found["empty"], at_most=NOISE),
        Figure(f"{title}: the same commands", "yes" if same else "no", goal="yes", met=same),
        Figure(f"memory of each of the {others:,}, by `used_memory`", f"{bytes_each:.0f} bytes"),
    ]


def fill(server: ValkeyServer, claims: int) -> float:
    """Put so many queued claims there, in copies of one that was really made; bytes of memory for each."""
    client = server.client()
    statement = make_claim(server.store_url)[1]
    statement["claim"](0)
    record, expires = client.get(KEY.format(0)), client.pexpiretime(KEY.format(0))
    before = client.info("memory")["used_memory"]
    numbers = iter(range(1, claims))
    while some := list(islice(numbers, 10_000)):
        with closing(client.pipeline(transaction=False)) as pipe:
            for number in some:
                pipe.set(KEY.format(number), record, pxat=expires)
            pipe.execute()
    return (client.info("memory")["used_memory"] - before) / max(claims - 1, 1)
