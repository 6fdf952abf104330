"""The four scenes. Each plays on the stage, then compares what the tasks recorded with what was to happen."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise

from legacy import database
from legacy.celeryconfig import dedupe_rules
from stage import PEOPLE, Call, Stage, wait_until
from timeline import Claim, Scene

from celery_dedupe import Policy

STEP = 0.25  # seconds between the calls of somebody who calls again and again


def ten_clicks(stage: Stage) -> Scene:
    task = "legacy.reports.make"
    with stage.held_up(task):
        calls = stage.call(PEOPLE, task, "acme", times=2)
    results = stage.collect()
    runs = stage.runs(task)
    of = {call.duplicate_of for call in calls} - {None}
    return Scene(
        'Ten clicks on "make report", from five browsers at once',
        task,
        sorted(calls, key=lambda call: call.at),
        runs,
        (
            Claim("ten clicks made one run", len(calls) == 10 and len(runs) == 1, f"{len(runs)} runs"),
            Claim(
                "nine of them are duplicates of it",
                _dropped(calls) == 9 and of == {run.task_id for run in runs},
                f"{_dropped(calls)} calls were dropped",
            ),
            Claim(
                "all ten got the same file",
                len(results) == 10 and len(set(results)) == 1,
                f"{len(set(results))} files",
            ),
        ),
    )


def change_during_sync(stage: Stage) -> Scene:
    task = "legacy.sync.account"
    database.execute("insert into accounts values ('acme', 0, 0)")
    notes, calls = [], []
    with stage.held_up(task):
        for version, who in enumerate(("Ann", "Ben", "Cay"), start=1):
            database.execute("update accounts set version = ? where name = 'acme'", version)
            notes.append((time.monotonic(), f"the account changes to version {version}"))
            calls += stage.call([who], task, "acme")
            stage.wait_running(task)
    runs = stage.wait_for(task, calls)
    [(copied,)] = database.execute("select copied from accounts where name = 'acme'")
    queued = len(runs) == 2 and [call.duplicate_of for call in calls] == [None, None, runs[1].task_id]
    return Scene(
        "A slow sync, and two changes while it runs",
        task,
        calls,
        runs,
        (
            Claim(
                "the sync never ran beside itself",
                all(first.ended <= second.started for first, second in pairwise(runs)),
                "two runs overlap",
            ),
            Claim("it ran once more, for both changes", queued, f"{len(runs)} runs in all"),
            Claim("the copy is of the last version", copied == 3, f"it is of version {copied}"),
        ),
        notes,
    )


def digest(stage: Stage) -> Scene:
    task = "legacy.mail.digest"
    period = Policy(**dedupe_rules[task]).period
    calls = stage.call(["Dan"], task)
    calls += _call_again(stage, "Dan", task)
    runs = stage.wait_for(task, calls)
    apart = calls[-1].until - calls[0].at
    return Scene(
        "An over-eager cron job asks for the digest again and again",
        task,
        calls,
        runs,
        (
            Claim(
                f"{len(calls)} calls sent the digest twice",
                len(runs) == 2 and _dropped(calls) == len(calls) - 2 > 0,
                f"{len(runs)} runs, {_dropped(calls)} calls dropped",
            ),
            Claim(f"{period:g} s lie between the two", apart >= period, f"{apart:.2f} s"),
        ),
    )


def killed_worker(stage: Stage) -> Scene:
    task = "legacy.backups.run"
    lease = Policy(**dedupe_rules["legacy.backups.*"]).lease
    with stage.held_up(task):
        calls = stage.call(["Eve"], task, "disk1")
        stage.wait_running(task)
        stage.worker.kill()
    killed = time.monotonic()
    stage.start_worker()
    calls += _call_again(stage, "Eve", task, "disk1")
    runs = stage.wait_for(task, calls[1:])
    held = [call for call in calls if call.duplicate_of == calls[0].task_id]
    last = held[-1].at - killed if held else 0.0
    return Scene(
        "A worker is killed in the middle of a backup",
        task,
        calls,
        runs,
        (
            Claim("the dead run held its lock at first", bool(held), "no call was dropped"),
            Claim(
                f"the lock freed itself within the lease of {lease:g} s",
                0 < last <= lease + STEP,
                f"the last call was dropped {last:.1f} s after the kill",
            ),
            Claim(
                "the next backup ran to its end",
                [run.ended is not None for run in runs] == [False, True],
                f"{sum(run.ended is not None for run in runs)} backups did",
            ),
        ),
        [(killed, "the worker and its children get SIGKILL; another is started")],
    )


SCENES: Sequence[Callable[[Stage], Scene]] = (ten_clicks, change_during_sync, digest, killed_worker)


def _call_again(stage: Stage, who: str, task: str, *args: str) -> list[Call]:
    """Call every quarter of a second until a call is not dropped."""
    calls: list[Call] = []

    def accepted() -> bool:
        time.sleep(STEP)
        calls.extend(stage.call([who], task, *args))
        return calls[-1].duplicate_of is None

    wait_until(accepted, f"every call of {task} is dropped")
    return calls


def _dropped(calls: Sequence[Call]) -> int:
    return sum(call.duplicate_of is not None for call in calls)
