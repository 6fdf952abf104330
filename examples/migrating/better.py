"""What changes for the better, told of tasks that each of the code bases has.

``make_report(customer, colour="blue")`` is under a lock from its call to its end, and so is ``fetch_feed``,
which retries once.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import journal
from celery import chord
from stage import Stage


def in_the_queue(stage: Stage, tasks: Any) -> None:
    """Which calls are the same, seen before any worker starts."""
    make_report = tasks.make_report
    stage.call(make_report.delay, "acme")
    again = stage.call(make_report.delay, customer="acme")
    stage.claim("a call by position and one by name are the same", not again.sent, "both were sent")
    again = stage.call(make_report.delay, "acme", "blue")
    stage.claim("a default that is given and one left out are the same", not again.sent, "both were sent")
    again = stage.call(tasks.app.send_task, make_report.name, ["acme"])
    stage.claim("send_task by name meets the lock", not again.sent, "both were sent")


def at_work(stage: Stage, tasks: Any) -> None:
    """What becomes of retries, chords, revoked tasks and killed processes."""
    stage.call(tasks.fetch_feed.delay, "retried")
    runs = 2 if stage.becomes(lambda: journal.done("feed retried") == 2) else journal.done("feed retried")
    stage.claim("a retry runs", runs == 2, f"{runs} run")

    journal.hold("report chord")
    both = [tasks.make_report.si("chord"), tasks.make_report.si("chord")]
    held = stage.call(chord(both, tasks.fetch_feed.si("after the chord")).delay)
    journal.let_go("report chord")
    stage.claim(
        "the body of a chord with two equal members runs",
        stage.becomes(lambda: journal.started("feed after the chord")),
        f"{type(held.raised).__name__} was raised" if held.raised else "it does not",
    )

    first = stage.call(tasks.make_report.apply_async, ["revoked"], countdown=5).returned
    stage.becomes(lambda: f"[{first.id}] received" in stage.log)
    first.revoke()
    stage.claim(
        "after a revoke the next call is accepted",
        stage.becomes(lambda: stage.call(tasks.make_report.delay, "revoked").sent),
        "every call is a duplicate of the revoked one",
    )

    journal.hold("report killed")
    stage.call(tasks.make_report.delay, "killed")
    stage.becomes(lambda: journal.started("report killed"))
    os.kill(journal.started("report killed")[0], signal.SIGKILL)
    journal.let_go("report killed")
    stage.claim(
        "after its process was killed the next call is accepted",
        stage.becomes(lambda: stage.call(tasks.make_report.delay, "killed").sent),
        "every call is a duplicate of the dead one",
    )
