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

    for page in (1, 2):  # one after the other, for there two at a time may each take the same place
        tasks.fetch_page.delay(page).get(timeout=60)
    sent = [tasks.fetch_page.delay(page).id for page in (3, 4, 5)]
    stage.becomes(lambda: came_back(stage, sent) == 3)
    runs = sum(journal.done(f"page {page}") for page in range(1, 6))
    stage.claim("rate_limit: of five calls two run, and three are to come back", runs == 2, f"{runs} run")

    for customer in ("small", "big"):
        tasks.sync_customer.delay(customer, 1).get(timeout=60)
    sent = [tasks.sync_customer.delay(customer, 2).id for customer in ("small", "big")]
    stage.becomes(lambda: came_back(stage, sent) == 1 and journal.done("customer big") == 2)
    runs = [journal.done(f"customer {customer}") for customer in ("small", "big")]
    stage.claim("a function gives one customer a lower rate", runs == [1, 2], f"{runs} run")

    for folder in ("one", "two"):
        tasks.clean_up.delay(folder).get(timeout=60)
    runs = [journal.done("clean one") + journal.done("clean two"), journal.done("announce")]
    stage.claim("only_after: of two runs one runs the block", runs == [2, 1], runs)

    tasks.refresh.delay("prices").get(timeout=60)
    stage.becomes(lambda: stage.call(tasks.refresh.delay, "prices").sent)
    stage.claim(
        "unique and rate_limit: who is over the limit runs later",
        stage.becomes(lambda: journal.done("refresh prices") == 2),
        "it is lost",
    )


def came_back(stage: Stage, sent: list[str]) -> int:
    """How many of these have been sent again, to come back later."""
    return sum(stage.log.count(f"[{task_id}] received") == 2 for task_id in sent)
