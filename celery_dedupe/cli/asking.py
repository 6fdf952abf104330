"""Asks the broker, and all workers that it reaches, over Celery's remote control."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from typing import Any

from celery_dedupe.core.workers import Worker, skew
from celery_dedupe.inspection import ABSENT, NAME, UNKNOWN

ANSWERED = {field.name for field in fields(Worker)} - {"node", "skew"}


class BrokerAway(Exception):
    """The broker does not answer, or carries no remote control."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What came back.

    Attributes:
        workers: those that have the extension.
        bare: those that have not, with the tasks that they have.
        failed: those whose answer is an error.
    """

    workers: Sequence[Worker]
    bare: Mapping[str, Collection[str]]
    failed: Mapping[str, str]

    def without(self, tasks: Collection[str]) -> list[str]:
        """Those that have not the extension and have any of these tasks: other apps may share the broker."""
        return [node for node, theirs in self.bare.items() if not set(tasks).isdisjoint(theirs)]

    @property
    def count(self) -> int:
        """How many have answered."""
        return len(self.workers) + len(self.bare) + len(self.failed)


def ask(app: Any, timeout: float, expected: int | None = None) -> Answers:
    """Ask all workers that the broker reaches, and wait for ``timeout`` seconds after the last answer.

    Where as many have answered as are ``expected``, no other is waited for.

    Raises ``BrokerAway``.
    """
    answers: dict[str, tuple[Any, float]] = {}

    def note(body: Mapping[str, Any]) -> None:
        answers.update({node: (reply, time.time()) for node, reply in body.items()})

    with _connected(app) as connection:
        asked = time.time()
        app.control.broadcast(
            NAME, reply=True, timeout=timeout, limit=expected, connection=connection, callback=note
        )
        errors = {node: str(reply["error"]) for node, (reply, _) in answers.items() if "error" in reply}
        without = [node for node, error in errors.items() if error in (ABSENT, UNKNOWN)]
        bare = _registered(app, without, timeout, connection) if without else {}
    good = {node: answer for node, answer in sorted(answers.items()) if node not in errors}
    workers = [_worker(node, reply, asked, at) for node, (reply, at) in good.items()]
    return Answers(workers, bare, {node: errors[node] for node in errors.keys() - bare.keys()})


def waiting(app: Any, queues: Collection[str]) -> int:
    """How many messages are in these queues of the broker. Raises ``BrokerAway``."""
    count = 0
    with _connected(app) as connection:
        for name in queues:
            # One that is not there has none.
            with connection.channel() as channel, suppress(*connection.channel_errors):
                count += channel.queue_declare(name, passive=True).message_count
    return count


@contextmanager
def _connected(app: Any) -> Iterator[Any]:
    try:
        with app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, interval_start=0.1, timeout=3)
            yield connection
    except Exception as error:
        # Each transport has errors of its own, for what it lacks too.
        raise BrokerAway(f"{type(error).__name__}: {error}") from error


def _worker(node: str, reply: Mapping[str, Any], asked: float, answered: float) -> Worker:
    # One of another version may leave something out, or say more.
    known: dict[str, Any] = {name: reply[name] for name in ANSWERED if name in reply}
    lists = {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
    return Worker(node=node, skew=skew(reply.get("clock", asked), asked, answered), **{**known, **lists})


def _registered(
    app: Any, nodes: Collection[str], timeout: float, connection: Any
) -> dict[str, Collection[str]]:
    replies = app.control.broadcast(
        "registered", reply=True, timeout=timeout, connection=connection, destination=sorted(nodes)
    )
    found: dict[str, Collection[str]] = dict.fromkeys(nodes, ())
    for body in replies or ():
        # A task may come with what else there is to say of it: "name [rate_limit=1/s]".
        found.update({node: [task.split(" ")[0] for task in tasks] for node, tasks in body.items()})
    return found
