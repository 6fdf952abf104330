"""What celery-once-task was there for, and the rules are now."""

from __future__ import annotations

from typing import Any

import journal
from stage import Stage

REFUSED = {"REJECTED", "REVOKED"}  # what it is called there, and here


def in_the_queue(stage: Stage, tasks: Any) -> None:
    """Seen before any worker starts."""
    for task, args, both, text in (
        (
            tasks.sync_account,
            ("umbrella", "a change"),
            False,
            "of two equal calls one is sent, the other returns None",
        ),
        (tasks.update_index, ("umbrella",), False, "running_lock=False: the same"),
        (tasks.clean_up, ("umbrella",), True, "queue_lock=False: both are sent"),
    ):
        first, second = (stage.call(task.delay, *args) for _ in range(2))
        stage.claim(text, first.sent and second.sent == both, [first, second])
        if not both:
            none = second.returned is None and not second.raised
            stage.claim("the other call returns None", none, second)


def at_work(stage: Stage, tasks: Any) -> None:
    """A second call while a run of the first is held up."""
    for task, work, args, sent, runs, text in (
        (
            tasks.sync_account,
            "sync",
            ("stark", "a change"),
            True,
            1,
            "a second call during a run is sent, and refused at its start",
        ),
        (tasks.clean_up, "clean", ("stark",), True, 1, "queue_lock=False: the same"),
        (tasks.update_index, "index", ("stark",), True, 2, "running_lock=False: it runs beside the first"),
        (tasks.make_report, "report", ("stark",), False, 1, "acks_late=True: it is not sent"),
    ):
        what = f"{work} stark"
        journal.hold(what)
        stage.call(task.delay, *args)
        stage.becomes(lambda what=what: journal.started(what))
        second = stage.call(task.delay, *args)
        if second.sent:
            result = second.returned
            stage.becomes(
                lambda what=what, result=result: len(journal.started(what)) == 2 or result.state in REFUSED
            )
        found = (second.sent, len(journal.started(what)))
        journal.let_go(what)
        stage.claim(text, found == (sent, runs), f"sent, runs: {found}")
