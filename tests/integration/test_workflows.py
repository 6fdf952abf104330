"""Duplicates inside workflows: nothing hangs, nothing runs twice at once, everything that waits is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError, TaskRevokedError

from celery_dedupe import DuplicateTask
from tests.apps.families import (
    FAMILIES,
    RAN,
    REVOKED,
    RULES,
    Family,
    claims_left,
    define_families,
    fate,
    in_letters,
    release,
    tasks_of,
)
from tests.harness.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    # Celery's Redis backend stores results by a command that redis-py 8 calls deprecated.
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
]


@dataclass(frozen=True)
class Shape:
    """A workflow in which one task is a duplicate.

    Attributes:
        build: makes it of a family's tasks, the key that is held, and a function that makes keys of its own.
        value: its result where the duplicate runs, ``"K"`` being the held key.
        always: letters of the keys that run whatever becomes of the duplicate.
        after: letters of those that run only if it runs.
        raises: what ``get`` raises besides the duplicate's own end.
    """

    build: Callable[[SimpleNamespace, str, Callable[[str], str]], Any]
    value: Any
    always: str = ""
    after: str = ""
    raises: tuple[type[Exception], ...] = ()


SHAPES = {
    "first link of a chain": Shape(
        lambda t, held, key: chain(t.quick.s(held), t.append.s(key("a")), t.append.s(key("b"))),
        ["K", "a", "b"],
        after="ab",
    ),
    "later link of a chain": Shape(
        lambda t, held, key: chain(t.quick.s(key("a")), t.append.s(held), t.append.s(key("b"))),
        ["a", "K", "b"],
        always="a",
        after="b",
    ),
    "last link of a chain": Shape(
        lambda t, held, key: chain(t.quick.s(key("a")), t.append.s(held)), ["a", "K"], always="a"
    ),
    "member of a group": Shape(
        lambda t, held, key: group(t.quick.s(key("a")), t.quick.s(held), t.quick.s(key("b"))),
        ["a", "K", "b"],
        always="ab",
    ),
    "header of a chord": Shape(
        lambda t, held, key: chord([t.quick.s(key("b")), t.quick.s(held)], t.gather.s(key("c"))),
        ["K", "b"],
        always="b",
        after="c",
        raises=(ChordError,),
    ),
    "body of a chord": Shape(
        lambda t, held, key: chord([t.quick.s(key("a")), t.quick.s(key("b"))], t.gather.s(held)),
        ["a", "b"],
        always="ab",
    ),
    "what replaces a task": Shape(
        lambda t, held, key: t.replaces.s(key("a"), t.quick.name, [held]), "K", always="a"
    ),
    "what replaces a link": Shape(
        lambda t, held, key: chain(t.replaces.s(key("a"), t.quick.name, [held]), t.append.s(key("b"))),
        ["K", "b"],
        always="a",
        after="b",
    ),
    "what replaces a header": Shape(
        lambda t, held, key: chord(
            [t.replaces.s(key("a"), t.quick.name, [held]), t.quick.s(key("b"))], t.gather.s(key("c"))
        ),
        ["K", "b"],
        always="ab",
        after="c",
        raises=(ChordError,),
    ),
    "header of a chord in a chain": Shape(
        lambda t, held, key: chain(
            t.quick.s(key("a")),
            group(t.append.s(held), t.append.s(key("b"))),
            t.gather.s(key("c")),
            t.append.s(key("d")),
        ),
        [["a", "K"], ["a", "b"], "d"],
        always="ab",
        after="cd",
        raises=(ChordError,),
    ),
    "member of the second group of a chain": Shape(
        lambda t, held, key: chain(
            group(t.quick.s(key("a")), t.quick.s(key("b"))), group(t.append.s(held), t.append.s(key("c")))
        ),
        [["a", "b", "K"], ["a", "b", "c"]],
        always="abc",
    ),
    "link of a chain in a group": Shape(
        lambda t, held, key: group(
            chain(t.quick.s(held), t.append.s(key("a"))), chain(t.quick.s(key("b")), t.append.s(key("c")))
        ),
        [["K", "a"], ["b", "c"]],
        always="bc",
        after="a",
    ),
    "link of a chain in a chord's header": Shape(
        lambda t, held, key: chord(
            [chain(t.quick.s(key("a")), t.append.s(held)), t.append.s([], key("b"))], t.gather.s(key("c"))
        ),
        [["a", "K"], ["b"]],
        always="ab",
        after="c",
        raises=(ChordError,),
    ),
}


SHAPES_OF = {
    "chains": ["first link of a chain", "later link of a chain", "last link of a chain"],
    "groups and chords": ["member of a group", "header of a chord", "body of a chord"],
    "replacements": ["what replaces a task", "what replaces a link", "what replaces a header"],
    "nested": [
        "header of a chord in a chain",
        "member of the second group of a chain",
        "link of a chain in a group",
        "link of a chain in a chord's header",
    ],
}


class Workflow:
    """One shape made of one family's tasks, with a key that another task holds."""

    def __init__(self, app: Any, family: Family, name: str) -> None:
        self.family = family
        self.shape = SHAPES[name]
        self.place = f"{family.name}:{name}"
        self.held = self.key("K")
        self._tasks = tasks_of(app, family)
        self._idle = f"{app.queue}-idle"
        self.result: Any = None

    def key(self, letter: str) -> str:
        return f"{self.place}:{letter}"

    def hold(self) -> None:
        """The key is taken until ``release``, by a run or by a message in a queue that nobody takes from."""
        if self.family.runs:
            self._tasks.holds.delay(self.held)
        else:
            self._tasks.quick.apply_async((self.held,), queue=self._idle)

    def send(self) -> None:
        self.result = self.shape.build(self._tasks, self.held, self.key).apply_async()

    def check_result(self) -> None:
        """It has come to the end that is due: nothing hangs."""
        try:
            outcome: Any = in_letters(self.result.get(timeout=20))
        except Exception as error:  # noqa: BLE001 - all that get() raises is looked at
            outcome = error
        if (end := fate(self.family)) == RAN:
            assert outcome == self.shape.value, f"{self.place}: {outcome!r}"
        else:
            own = TaskRevokedError if end == REVOKED else DuplicateTask
            assert isinstance(outcome, (own, *self.shape.raises)), f"{self.place}: {outcome!r}"

    def check_runs(self, ledger: Any) -> None:
        """Each body has run as often as it should, and never beside another of its key."""
        shape, ran = self.shape, fate(self.family) == RAN
        expected = Counter("KK" + shape.always + shape.after if ran else "K" + shape.always)

        def runs() -> Counter[str]:
            return Counter(
                in_letters(run.key) for run in ledger.runs() if run.key.startswith(f"{self.place}:")
            )

        wait_until(lambda: runs().total() >= expected.total(), 10, lambda: f"{self.place}: {runs()}")
        assert runs() == expected, self.place
        if self.family.runs:
            assert ledger.overlaps(self.held) == []


@pytest.mark.parametrize("kind", SHAPES_OF)
def test_a_duplicate_in_a_workflow(make_app, workers, kind):
    app = make_app(RULES, setup=define_families)
    play([Workflow(app, family, name) for name in SHAPES_OF[kind] for family in FAMILIES], app, workers)


@pytest.mark.services
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["groups and chords", "nested"])
def test_a_duplicate_in_a_workflow_on_rabbitmq_and_a_database(
    make_app, workers, rabbitmq_url, postgres_url, kind
):
    """Here a chord's body is published by a task that polls, since a database cannot count."""
    app = make_app(RULES, setup=define_families, broker=rabbitmq_url, backend=f"db+{postgres_url}")
    families = [family for family in FAMILIES if family.lock in ("until_finished", "once")]
    play([Workflow(app, family, name) for name in SHAPES_OF[kind] for family in families], app, workers)


def play(workflows: list[Workflow], app: Any, workers: Any) -> None:
    """All at once, on one worker."""
    workers(app, pool="threads", concurrency=len(workflows) + 16)
    for workflow in workflows:
        workflow.hold()
    app.ledger.wait_for(sum(workflow.family.runs for workflow in workflows), ended=False)

    for workflow in workflows:
        workflow.send()
    wait_until(
        lambda: met(app.ledger).total() == len(workflows), 45, lambda: f"{met(app.ledger)}", interval=0.2
    )
    release(app)

    for workflow in workflows:
        workflow.check_result()
    wait_until(lambda: not claims_left(app), 10, lambda: "\n".join(claims_left(app)))
    for workflow in workflows:
        workflow.check_runs(app.ledger)


def met(ledger: Any) -> Counter[str]:
    """For each family, how many duplicates have met the last of their obstacles."""
    starts = {family.name for family in FAMILIES if family.runs}
    last = {note["key"]: note["task"] for note in ledger.notes("refused")}
    for note in ledger.notes("dropped"):
        if not (note["published"] and note["task"].partition(".")[0] in starts):
            last[note["key"]] = note["task"]
    return Counter(task.partition(".")[0] for task in last.values())
