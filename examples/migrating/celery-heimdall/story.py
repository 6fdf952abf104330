"""What celery-heimdall was there for, and the rules are now."""

from __future__ import annotations

from typing import Any

import journal
import views
from stage import Stage


def in_the_queue(stage: Stage, tasks: Any) -> None:
    """Seen before any worker starts."""
    first, second = (stage.call(views.order_report, "umbrella") for _ in range(2))
    stage.claim("unique: of two equal calls one is sent", first.sent and not second.sent, [first, second])
    stage.claim("both get the id of the one that runs", first.returned == second.returned)

    one, two = (views.press_sync("umbrella") for _ in range(2))
    told = f"under way as {one}, whose lock ends in "
    stage.claim("key, unique_raises: the other is told its id and the time left", two.startswith(told), two)
    other = stage.call(views.press_sync, "initech")
    stage.claim("another account is another key", other.sent, other)


def at_work(stage: Stage, tasks: Any) -> None:
    """Seen at work."""
    stage.call(tasks.send_digest.delay, "ann@example.com").returned.get(timeout=60)
    again = stage.call(tasks.send_digest.delay, "ann@example.com")
    stage.claim("unique_wait_for_expiry: after its run the period goes on", not again.sent, again)

    journal.hold("report stark")
    first = stage.call(views.order_report, "stark")
    stage.becomes(lambda: journal.started("report stark"))
    second = stage.call(views.order_report, "stark")
    journal.let_go("report stark")
    stage.claim("a call during the run is a duplicate of it", second.returned == first.returned, second)
    stage.claim(
        "after the end of a run the next call is accepted",
        stage.becomes(lambda: stage.call(tasks.make_report.delay, "stark").sent),
    )
