"""What is stored in a database, who may wait for whom there, and what becomes of rows that are not ours."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, create_engine, delete, event, insert, select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.schema import DropTable

from celery_dedupe.core.asks import Attempt, Caller, EvictAsk, FinishAsk, LeaseAsk, Refused
from celery_dedupe.core.parts import FOREVER, Queued
from celery_dedupe.core.record import Record
from celery_dedupe.errors import StoreUnavailable
from celery_dedupe.store import sql_text, sql_transactions
from celery_dedupe.store.connect import open_store
from celery_dedupe.store.protocol import NotARecord, NotSetUp, Store
from celery_dedupe.store.sql import SqlStore
from celery_dedupe.tables import claims, create_tables
from tests.contract.asks import MINUTE, SHORT, begun, claim, queued_ids, slot
from tests.contract.conftest import PATIENT, Keys
from tests.harness.databases import mariadb_database, postgres_database
from tests.harness.waiting import wait_until

FOREIGN = (
    "somebody's text",
    "17",
    "[]",
    '{"a": 1}',
    '{"queued": 3}',
    '{"queued": [{"task": "t1"}]}',
    '{"done": []}',
)


def sql_store(url: str) -> SqlStore:
    store = open_store(url, PATIENT)
    assert isinstance(store, SqlStore)
    return store


@pytest.fixture
def store(database_url: str) -> Iterator[SqlStore]:
    """A store on each database; empty."""
    store = sql_store(database_url)
    store.read("makes the table, in SQLite")
    with store._engine.begin() as connection:
        connection.execute(delete(claims))  # which has rows of other tests
    yield store
    store.close()


def ends(store: SqlStore) -> dict[str, int]:
    with store._engine.begin() as connection:
        return {row.key: row.expires_at for row in connection.execute(select(claims))}


def put(store: SqlStore, key: str, text: str) -> None:
    with store._engine.begin() as connection:
        connection.execute(insert(claims).values(key=key, record=text, expires_at=FOREVER))


def text_of(store: SqlStore, key: str) -> str | None:
    with store._engine.begin() as connection:
        return connection.execute(select(claims.c.record).where(claims.c.key == key)).scalar()


@contextmanager
def holding(store: SqlStore, *keys: str) -> Iterator[Connection]:
    """A transaction of somebody else's that has locked these rows, as the store does."""
    with store._engine.connect() as connection:
        store._rows.lock(connection, sorted(keys))
        yield connection
        with suppress(OperationalError):
            connection.rollback()


class TestRows:
    def test_a_row_ends_with_its_last_part(self, store: SqlStore, keys: Keys) -> None:
        def check() -> None:
            assert ends(store) == {keys(): store.read(keys()).expires_at}

        store.claim([claim(keys(), 5000)], Caller("t1"))
        check()
        begun(store, Attempt("t1", "tok", "n"), slot(keys(), lease=20_000))
        check()
        store.renew([LeaseAsk(keys(), "tok", MINUTE)])
        check()
        store.finish([FinishAsk(keys(), "tok", "done", FOREVER)], Attempt("t1", "tok"), well=True)
        check()
        assert ends(store) == {keys(): FOREVER}

    def test_a_finished_task_leaves_no_row(self, store: SqlStore, keys: Keys) -> None:
        store.claim([claim(keys())], Caller("t1"))
        begun(store, Attempt("t1", "tok"), slot(keys()))
        store.finish([FinishAsk(keys(), "tok", "free")], Attempt("t1", "tok"), well=True)
        assert ends(store) == {}

    def test_nor_does_what_was_asked_for_and_not_there(self, store: SqlStore, keys: Keys) -> None:
        store.claim([claim(keys("a"))], Caller("t1"))
        store.withdraw([keys("a"), keys("b")], "t1")
        store.renew([LeaseAsk(keys("c"), "tok", MINUTE)])
        store.finish([FinishAsk(keys("d"), "tok", "free")], Attempt("t1", "tok"), well=True)
        store.evict([EvictAsk(keys("e"), ("t1",))])
        assert ends(store) == {}

    def test_what_changes_nothing_commits_nothing(self, store: SqlStore, keys: Keys) -> None:
        store.claim([claim(keys("a"))], Caller("t1"))
        commits: list[object] = []
        event.listen(store._engine, "commit", commits.append)
        assert isinstance(store.claim([claim(keys("b")), claim(keys("a"))], Caller("t2")), Refused)
        store.withdraw([keys("a"), keys("b")], "t2", running=True)
        store.finish([FinishAsk(keys("a"), "tok", "free")], Attempt("t2", "tok"), well=True)
        store.renew([LeaseAsk(keys("a"), "tok", MINUTE)])
        assert not commits
        assert ends(store).keys() == {keys("a")}

    def test_a_key_of_any_length_is_a_lock_of_its_own(self, store: SqlStore, keys: Keys) -> None:
        names = [keys("x" * length + end) for length in (200, 300, 3000) for end in ("a", "b", "B")]
        for number, name in enumerate(names):
            assert store.claim([claim(name)], Caller(f"t{number}")) is None
        for number, name in enumerate(names):
            assert queued_ids(store.read(name)) == [f"t{number}"]
        found = dict(store.scan(f"{keys.prefix}:*"))
        assert sorted(task_id for record in found.values() for task_id in queued_ids(record)) == [
            f"t{number}" for number in range(9)
        ]
        for key, record in found.items():
            assert store.read(key) == record, "what a scan names can be asked for"

    def test_a_scan_takes_many_pages(self, store: SqlStore, keys: Keys) -> None:
        store.chunk = 3
        names = [keys(f"{number:02}") for number in range(10)]
        for name in names:
            store.claim([claim(name)], Caller("t1"))
        assert [key for key, _ in store.scan(f"{keys.prefix}:*")] == names
        assert [key for key, _ in store.scan(f"{keys.prefix}:0[1-3]")] == names[1:4]
        assert [key for key, _ in store.scan("*:07")] == [names[7]]
        assert not list(store.scan("nobody's:*"))


class TestSweep:
    def test_rows_that_nobody_asks_for_again_are_deleted(
        self, store: SqlStore, keys: Keys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(5):
            store.claim([claim(keys(f"gone {number}"), SHORT)], Caller("t1"))
        store.claim([claim(keys("alive"))], Caller("t1"))
        store.finish([FinishAsk(keys("kept"), "", "done", FOREVER)], Attempt("t1", ""), well=True)
        wait_until(lambda: not dict(store.scan(f"{keys.prefix}:gone*")), 5)
        assert len(ends(store)) == 7

        monkeypatch.setattr(sql_transactions, "SWEEP_EVERY", 0.0)
        store._sweep_at = 0.0
        store.renew([LeaseAsk(keys("alive"), "tok", MINUTE)])
        assert ends(store).keys() == {keys("alive"), keys("kept")}

    def test_in_steps_one_right_after_the_other(self, store: SqlStore, keys: Keys) -> None:
        for number in range(5):
            store.claim([claim(keys(f"gone {number}"), SHORT)], Caller("t1"))
        wait_until(lambda: not dict(store.scan(f"{keys.prefix}:gone*")), 5)
        store.sweep = 2
        left = []
        store._sweep_at = 0.0
        for _ in range(4):
            store.renew([LeaseAsk(keys("none"), "tok", MINUTE)])
            left.append(len(ends(store)))
        assert left == [3, 1, 0, 0]
        assert store._sweep_at > 0, "and then not for a while"

    def test_a_row_that_somebody_is_at_is_left_alone(self, store: SqlStore, keys: Keys) -> None:
        if store._engine.dialect.name == "sqlite":
            pytest.skip("it locks no rows")
        for name in "ab":
            store.claim([claim(keys(name), SHORT)], Caller("t1"))
        wait_until(lambda: not dict(store.scan(f"{keys.prefix}:*")), 5)
        with holding(store, keys("a")):
            store._sweep_at = 0.0
            store.renew([LeaseAsk(keys("none"), "tok", MINUTE)])
            assert ends(store).keys() == {keys("a")}


class TestOthersTransactions:
    def test_whoever_comes_second_waits_and_then_sees(self, store: SqlStore, keys: Keys) -> None:
        replies: list[object] = []
        second = threading.Thread(
            target=lambda: replies.append(store.claim([claim(keys())], Caller("t2"))), daemon=True
        )
        with sql_store_of(store) as other, holding(other, keys()) as connection:
            second.start()
            second.join(0.3)
            assert second.is_alive()
            theirs = Record(queued=(Queued("t1", other.clock() + MINUTE),))
            other._rows.write(connection, {keys(): (sql_text.write(theirs), theirs.expires_at)})
            connection.commit()
        second.join(30)
        assert isinstance(replies[0], Refused)
        assert [holder.task_id for holder in replies[0].holders] == ["t1"]

    def test_a_deadlock_is_not_noticed(self, store: SqlStore, keys: Keys) -> None:
        if store._engine.dialect.name == "sqlite":
            pytest.skip("it locks no rows")
        replies: list[object] = []
        first = threading.Thread(
            target=lambda: replies.append(
                store.claim([claim(keys("a")), claim(keys("b")), claim(keys("c"))], Caller("t1"))
            ),
            daemon=True,
        )
        tries: list[object] = []
        event.listen(store._engine, "begin", tries.append)
        # Somebody who takes them in another order than the store does.
        with holding(store, keys("b"), keys("c")) as connection:
            connection.execute(update(claims).where(claims.c.key == keys("c")).values(expires_at=2))
            first.start()
            wait_until(lambda: len(tries) > 1, 10)
            with suppress(OperationalError):
                first.join(0.3)
                store._rows.lock(connection, [keys("a")])
        first.join(30)
        assert replies == [None]
        assert [queued_ids(store.read(keys(name))) for name in "abc"] == [["t1"]] * 3


@contextmanager
def sql_store_of(store: SqlStore) -> Iterator[SqlStore]:
    """Another one on the same database."""
    with closing(sql_store(f"db+{store._engine.url.render_as_string(hide_password=False)}")) as other:
        yield other


@pytest.mark.parametrize("text", FOREIGN)
class TestForeignRows:
    def test_every_verb_says_which_key(self, store: SqlStore, keys: Keys, text: str) -> None:
        put(store, keys(), text)
        calls: list[Callable[[Store], object]] = [
            lambda store: store.claim([claim(keys("other")), claim(keys())], Caller("t1")),
            lambda store: store.begin([slot(keys())], Attempt("t1", "tok")),
            lambda store: store.finish([FinishAsk(keys(), "tok", "free")], Attempt("t1", "tok"), well=True),
            lambda store: store.withdraw([keys()], "t1"),
            lambda store: store.read(keys()),
            lambda store: store.evict([EvictAsk(keys(), ("t1",))]),
        ]
        for call in calls:
            with pytest.raises(NotARecord) as raised:
                call(store)
            assert raised.value.key == keys()
        assert text_of(store, keys()) == text
        assert ends(store).keys() == {keys()}

    def test_the_other_leases_are_renewed(self, store: SqlStore, keys: Keys, text: str) -> None:
        put(store, keys("foreign"), text)
        begun(store, Attempt("t1", "tok"), slot(keys("a"), lease=5000), slot(keys("b"), lease=5000))
        asks = [LeaseAsk(keys(name), "tok", MINUTE) for name in ("a", "foreign", "b")]
        assert store.renew(asks) == [True, False, True]
        assert ends(store)[keys("b")] > store.clock() + 5000
        assert text_of(store, keys("foreign")) == text

    def test_a_scan_goes_on(
        self, store: SqlStore, keys: Keys, text: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        put(store, keys("foreign"), text)
        store.claim([claim(keys("ours"))], Caller("t1"))
        with caplog.at_level(logging.WARNING, "celery_dedupe"):
            assert dict(store.scan(f"{keys.prefix}:*")).keys() == {keys("ours")}
        assert keys("foreign") in caplog.text


class TestTable:
    @pytest.mark.services
    @pytest.mark.parametrize("new_database", [postgres_database, mariadb_database])
    def test_where_it_is_missing_the_error_says_how_to_make_it(self, new_database, keys: Keys) -> None:
        with new_database() as url, closing(open_store(f"db+{url}", PATIENT)) as store:
            for ask in (lambda: store.claim([claim(keys())], Caller("t1")), store.facts):
                with pytest.raises(NotSetUp) as raised:
                    ask()
            said = str(raised.value)
            assert said.startswith("the claim store has no table celery_dedupe_claims: make it with ")
            names = {"create_tables": create_tables, "claims": claims}
            exec(said.partition("celery_dedupe.tables.")[2], names)  # The services need no password.
            assert store.claim([claim(keys())], Caller("t1")) is None

    def test_in_sqlite_it_is_made_with_the_file(self, tmp_path: Path, keys: Keys) -> None:
        with closing(open_store(f"db+sqlite:///{tmp_path}/new.sqlite")) as store:
            assert store.claim([claim(keys())], Caller("t1")) is None
            assert not store.read(keys("b"))
            assert isinstance(store, SqlStore)
            with store._engine.connect() as link:
                assert link.exec_driver_sql("PRAGMA synchronous").scalar() == 1, "NORMAL: no sync a commit"
        engine: Engine = create_engine(f"sqlite:///{tmp_path}/new.sqlite")
        with engine.begin() as connection:
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
            connection.execute(DropTable(claims))
        with closing(open_store(f"db+sqlite:///{tmp_path}/new.sqlite")) as store:
            assert store.claim([claim(keys())], Caller("t2")) is None
        engine.dispose()

    def test_a_file_that_cannot_be_made_or_read(self, tmp_path: Path, keys: Keys) -> None:
        (tmp_path / "text").write_text("This is not a database, whatever its name may say.")
        for name in ("no/such/folder.sqlite", "text"):
            with closing(open_store(f"db+sqlite:///{tmp_path}/{name}")) as store:
                message = unavailable(store, keys())
                assert message.startswith("the claim store cannot be used: ")
                assert "database" in message

    def test_a_file_that_cannot_be_written(self, tmp_path: Path, keys: Keys) -> None:
        with closing(open_store(f"db+sqlite:///{tmp_path}/new.sqlite")) as store:
            store.claim([claim(keys())], Caller("t1"))
        with closing(open_store(f"db+sqlite:///file:{tmp_path}/new.sqlite?mode=ro&uri=true")) as store:
            assert "readonly" in unavailable(store, keys())
            assert queued_ids(store.read(keys())) == ["t1"]


def unavailable(store: Store, key: str) -> str:
    with pytest.raises(StoreUnavailable) as raised:
        store.claim([claim(key)], Caller("t1"))
    return str(raised.value)
