"""What celery-once was there for, and the rules are now."""

from __future__ import annotations

from typing import Any

import journal
import views
from stage import Stage


def in_the_queue(stage: Stage, tasks: Any) -> None:
    """Seen before any worker starts."""
    first, second = (stage.call(tasks.make_report.delay, "umbrella") for _ in range(2))
    stage.claim("of two equal calls one is sent", first.sent and not second.sent, [first, second])
    stage.claim("graceful: nothing is raised", not second.raised, second.raised)

    answers = [views.press_sync("umbrella") for _ in range(3)]
    told = ["it will be synced", *["under way; its lock ends in 600 s"] * 2]
    stage.claim("keys, and a timeout: a duplicate is told until when", answers == told, answers)
    stage.claim("another account is another key", views.press_sync("initech") == told[0])

    first, second = (stage.call(tasks.update_index.delay, page) for page in (1, 2))
    stage.claim("keys=[]: whatever its arguments, one waits", first.sent and not second.sent, [first, second])


def at_work(stage: Stage, tasks: Any) -> None:
    """Seen at work."""
    journal.hold("index")
    stage.call(tasks.update_index.delay, 1)
    stage.becomes(lambda: journal.started("index"))
    during = stage.call(tasks.update_index.delay, 2)
    journal.let_go("index")
    stage.claim("unlock_before_run: a call during a run is sent", during.sent, during)

    stage.claim(
        "after the end of a run the next call is accepted",
        stage.becomes(lambda: stage.call(tasks.make_report.delay, "umbrella").sent),
    )
