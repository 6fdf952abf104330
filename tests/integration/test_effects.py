"""``effect_once`` in two processes at once: one does it, the other waits, and then sees."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, make_url, text

from tests.apps.askers import SENT, serve
from tests.harness.waiting import remains_true, wait_until

pytestmark = pytest.mark.integration

ROUNDS = 50
SPAWN = multiprocessing.get_context("spawn")
# What each server says of a transaction that waits for another. SQLite says nothing.
WAITING = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = :name",
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p "
    "ON p.id = t.trx_mysql_thread_id WHERE t.trx_state = 'LOCK WAIT' AND p.db = :name",
}


class Asker:
    """A process that does what it is told, one order after the other."""

    def __init__(self, style: str, url: str, isolation: str | None, barrier: Any) -> None:
        self._link, theirs = SPAWN.Pipe()
        self._process = SPAWN.Process(
            target=serve, args=(style, url, isolation, barrier, theirs), daemon=True
        )
        self._process.start()
        theirs.close()

    def send(self, *order: Any) -> None:
        self._link.send(order)

    def answer(self) -> Any:
        assert self._link.poll(60), "no answer"
        return self._link.recv()

    def answered(self) -> bool:
        return self._link.poll()

    def do(self, *order: Any) -> Any:
        self.send(*order)
        return self.answer()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._link.close()


class Database:
    """A database of the test's own, and the processes on it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.kind = make_url(url).get_backend_name()
        self.engine: Engine = create_engine(url)
        self.barrier = SPAWN.Barrier(2)
        self.askers: list[Asker] = []

    def start(self, style: str, number: int = 2, isolation: str | None = None) -> list[Asker]:
        started = [Asker(style, self.url, isolation, self.barrier) for _ in range(number)]
        self.askers += started
        assert started[0].do("create") is None
        return started

    def sent(self) -> list[str]:
        """What the effect wrote."""
        with self.engine.connect() as connection:
            return sorted(connection.execute(text(f"SELECT object_id FROM {SENT}")).scalars())

    def wait_until_waiting(self, *askers: Asker) -> None:
        """Return when these wait for a transaction of another's to end."""
        if self.kind == "sqlite":
            remains_true(lambda: not any(asker.answered() for asker in askers), 0.3)
            return
        name = make_url(self.url).database
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            waiting = text(WAITING[self.kind])
            # MariaDB shows what it showed last to who asks again within a tenth of a second.
            wait_until(
                lambda: (
                    connection.execute(waiting, {"name": name}).scalar() == len(askers)
                    or any(asker.answered() for asker in askers)
                ),
                interval=0.2,
            )
        assert not any(asker.answered() for asker in askers), "it did not wait"

    def close(self) -> None:
        for asker in self.askers:
            asker.kill()
        self.engine.dispose()


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.services),
        pytest.param("mariadb", marks=pytest.mark.services),
    ]
)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    url = f"sqlite:///{tmp_path}/effects.sqlite"
    if request.param != "sqlite":
        url = request.getfixturevalue(f"{request.param}_url")
    database = Database(url)
    yield database
    database.close()


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[Database]:
    database = Database(postgres_url)
    yield database
    database.close()


@pytest.fixture
def mariadb(mariadb_url: str) -> Iterator[Database]:
    database = Database(mariadb_url)
    yield database
    database.close()


STYLES = pytest.mark.parametrize("style", ["session", "connection", "django"])


@STYLES
def test_of_two_at_a_barrier_exactly_one_is_the_first(database: Database, style: str) -> None:
    askers = database.start(style)
    objects = [f"{number:03}" for number in range(ROUNDS)]

    for object_id in objects:
        for asker in askers:
            asker.send("race", object_id)
        assert sorted(str(asker.answer()) for asker in askers) == ["False", "True"], object_id

    assert database.sent() == objects


@STYLES
def test_the_second_waits_for_the_first_and_then_sees(database: Database, style: str) -> None:
    first, second = database.start(style)
    for object_id, commits in (("committed", True), ("rolled back", False)):
        first.do("begin")
        second.do("begin")
        assert first.do("ask", object_id) is True

        second.send("ask", object_id)
        database.wait_until_waiting(second)
        assert first.do("end", commits) is None

        assert second.answer() is (not commits)
        assert second.do("ask", f"after {object_id}") is True, "its transaction goes on"
        assert second.do("end", True) is None
    assert database.sent() == ["after committed", "after rolled back", "committed", "rolled back"]
    first.do("begin")
    answers = [
        first.do("ask", object_id) for object_id in ("committed", "rolled back", "Committed", "ä", "a")
    ]
    assert answers == [False, False, True, True, True]


@pytest.mark.services
@pytest.mark.parametrize(
    ("style", "isolation"),
    [("session", "REPEATABLE READ"), ("session", "SERIALIZABLE"), ("django", "REPEATABLE READ")],
)
def test_a_snapshot_of_postgresql_that_cannot_see_the_row(
    postgres: Database, style: str, isolation: str
) -> None:
    first, second = postgres.start(style, isolation=isolation)
    second.do("begin")
    assert second.do("look") == 0
    first.do("begin")
    assert first.do("ask", "a") is True
    first.do("end", True)

    answer = second.do("ask", "a")
    assert answer.startswith("OperationalError: ")
    assert "could not serialize access" in answer
    assert second.do("look") == 0, "the transaction is not broken, and still sees its snapshot"
    second.do("end", False)

    second.do("begin")
    assert second.do("ask", "a") is False, "run again, it sees"
    assert second.do("ask", "b") is True
    first.do("begin")
    first.send("ask", "b")
    postgres.wait_until_waiting(first)
    second.do("end", False)
    assert first.answer() is True, "a row that was taken back is in nobody's way"
    assert first.do("end", True) is None
    assert postgres.sent() == ["a", "b"]


@pytest.mark.services
@STYLES
def test_mariadb_ends_a_deadlock_of_two_that_wait_with_an_error_that_says_so(
    mariadb: Database, style: str
) -> None:
    first, *waiting = mariadb.start(style, 3)
    for asker in (first, *waiting):
        asker.do("begin")
    assert first.do("ask", "a") is True
    for asker in waiting:
        asker.send("ask", "a")
    mariadb.wait_until_waiting(*waiting)
    first.do("end", False)

    answers = {str(asker.answer()): asker for asker in waiting}
    winner = answers.pop("True")
    ((told, loser),) = answers.items()
    assert told.startswith("OperationalError: ")
    assert "Deadlock found" in told
    winner.do("end", True)
    loser.do("end", False)
    loser.do("begin")
    assert loser.do("ask", "a") is False, "run again, it sees"
    assert mariadb.sent() == ["a"]
