"""``effect_once`` for SQLAlchemy on one connection of SQLite; two at once are in ``tests/integration``."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata, produce_migrations, render_python_code
from alembic.migration import MigrationContext
from alembic.operations import Operations
from celery import Celery
from sqlalchemy import (
    Column,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    delete,
    event,
    func,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.dialects import mssql, mysql, postgresql
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker
from sqlalchemy.schema import CreateTable

from celery_dedupe import ConfigurationError
from celery_dedupe.core.effect import KIND_LENGTH, OBJECT_ID_LENGTH, effect_name
from celery_dedupe.effects import effect_once
from celery_dedupe.tables import create_tables, effects, metadata

DOCUMENT = Path(__file__).parents[2] / "docs" / "effects.md"
IMPORTS = "import sqlalchemy as sa\nfrom alembic import op\nfrom sqlalchemy.dialects import mysql, postgresql"


class Base(DeclarativeBase):
    pass


class Mail(Base):
    """What the effect is here."""

    __tablename__ = "mail"
    id: Mapped[int] = mapped_column(primary_key=True)
    to: Mapped[str] = mapped_column(unique=True)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path}/effects.sqlite")
    create_tables(engine, effects)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


def asked(bind: Any, object_id: Any = "a", kind: str = "mail") -> bool:
    with effect_once(bind, kind, object_id) as first:
        return first


def fail_within(bind: Any, body: Callable[[], object], error: Exception) -> None:
    with effect_once(bind, "mail", "a"):
        body()
        raise error


def write(bind: Any, to: str) -> None:
    bind.execute(insert(Mail).values(to=to))


def rows(engine: Engine) -> set[tuple[str, str]]:
    with engine.connect() as connection:
        return {(row.kind, row.object_id) for row in connection.execute(select(effects))}


def mails(engine: Engine) -> list[str]:
    with Session(engine) as session:
        return list(session.scalars(select(Mail.to)))


class TestFateOfTheTransaction:
    def test_true_once_for_each_kind_and_object(self, engine: Engine) -> None:
        with Session(engine) as session, session.begin():
            assert [asked(session), asked(session), asked(session, "b"), asked(session, kind="sms")] == [
                True,
                False,
                True,
                True,
            ]
        with engine.begin() as connection:
            assert [asked(connection), asked(connection, "c")] == [False, True]
        assert rows(engine) == {("mail", "a"), ("mail", "b"), ("mail", "c"), ("sms", "a")}

    def test_a_rollback_takes_row_and_effect_back(self, engine: Engine) -> None:
        for bind in (Session(engine), engine.connect()):
            with bind:
                assert asked(bind)
                write(bind, "ann")
                bind.rollback()
                assert asked(bind), "the next that asks is the first again"
                bind.rollback()
        assert rows(engine) == set()
        assert mails(engine) == []

    def test_what_came_before_in_the_transaction_shares_it_too(self, engine: Engine) -> None:
        # Python's sqlite3 begins a transaction at the first write only, and not for a savepoint.
        with Session(engine) as session:
            session.add(Mail(to="before"))
            assert asked(session)
            session.add(Mail(to="after"))
            session.commit()
            assert not asked(session)
            session.add(Mail(to="taken back"))
            session.flush()
            session.rollback()
        assert mails(engine) == ["before", "after"]
        assert rows(engine) == {("mail", "a")}

    def test_a_commit_within_the_block_stands(self, engine: Engine) -> None:
        with Session(engine) as session:
            with effect_once(session, "mail", "a") as first:
                assert first
                session.commit()
            session.rollback()
        assert rows(engine) == {("mail", "a")}

    def test_a_transaction_that_the_application_begins_itself(self, engine: Engine) -> None:
        # The way that SQLAlchemy's documentation shows for savepoints on SQLite.
        @event.listens_for(engine, "connect")
        def _(connection: Any, _record: Any) -> None:
            connection.isolation_level = None

        @event.listens_for(engine, "begin")
        def _(connection: Any) -> None:
            connection.exec_driver_sql("BEGIN")

        engine.dispose()
        with Session(engine) as session:
            assert asked(session)
            session.rollback()
            assert [asked(session), asked(session)] == [True, False]
            session.commit()
        assert rows(engine) == {("mail", "a")}


class TestFailingBody:
    @pytest.mark.parametrize("kind", ["session", "connection"])
    def test_its_row_and_its_writes_go_and_the_transaction_goes_on(self, engine: Engine, kind: str) -> None:
        error = KeyError("of the body")
        with Session(engine) if kind == "session" else engine.connect() as bind:
            write(bind, "before")
            with pytest.raises(KeyError) as caught:
                fail_within(bind, lambda: write(bind, "within"), error)
            assert caught.value is error
            assert asked(bind), "where the error is swallowed, the effect has not happened"
            bind.commit()
        assert mails(engine) == ["before"]
        assert rows(engine) == {("mail", "a")}

    def test_what_the_orm_holds_goes_with_it(self, engine: Engine) -> None:
        with Session(engine) as session, session.begin():
            with pytest.raises(KeyError):
                fail_within(session, lambda: session.add(Mail(to="within")) or session.flush(), KeyError())
            assert not list(session.scalars(select(Mail)))
        assert mails(engine) == []

    def test_an_error_of_the_database_is_one_too(self, engine: Engine) -> None:
        with Session(engine) as session, session.begin():
            session.add(Mail(to="ann"))
            with pytest.raises(IntegrityError), effect_once(session, "mail", "a"):
                write(session, "ann")
            session.add(Mail(to="ben"))
        assert (mails(engine), rows(engine)) == (["ann", "ben"], set())

    def test_of_a_second_asker_it_takes_back_what_that_one_wrote(self, engine: Engine) -> None:
        with Session(engine) as session, session.begin():
            assert asked(session)
            with pytest.raises(KeyError):
                fail_within(session, lambda: write(session, "within"), KeyError())
        assert (mails(engine), rows(engine)) == ([], {("mail", "a")})

    def test_without_the_table_the_error_tells_and_the_transaction_goes_on(self, engine: Engine) -> None:
        metadata.drop_all(engine)
        with Session(engine) as session, session.begin():
            with pytest.raises(OperationalError, match="no such table: celery_dedupe_effects"):
                asked(session)
            session.add(Mail(to="ann"))
        assert mails(engine) == ["ann"]


class TestWhatItTakes:
    def test_a_scoped_session(self, engine: Engine) -> None:
        session = scoped_session(sessionmaker(engine))
        assert [asked(session), asked(session)] == [True, False]
        session.commit()
        session.remove()
        assert rows(engine) == {("mail", "a")}

    def test_anything_else_is_an_error_that_says_what_to_pass(self, engine: Engine) -> None:
        with pytest.raises(TypeError, match="pass a Session, a scoped_session or a Connection, not Engine"):
            asked(engine)

    def test_whoever_may_not_wait_any_longer_is_told(self, engine: Engine) -> None:
        hasty = create_engine(engine.url, connect_args={"timeout": 0})
        with Session(engine) as first, Session(hasty) as second:
            assert asked(first)
            with pytest.raises(OperationalError, match="database is locked"):
                asked(second, "of any kind")
            first.commit()
            assert not asked(second)
        hasty.dispose()

    def test_what_the_application_reads_on_the_way_does_not_make_it_give_up(self, engine: Engine) -> None:
        # In WAL mode a transaction that has read cannot write after another one has.
        with engine.begin() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        hasty = create_engine(engine.url, connect_args={"timeout": 0})
        with Session(engine) as session:

            @event.listens_for(session, "before_flush")
            def _(*_: Any) -> None:
                session.connection().execute(select(effects))
                with suppress(OperationalError), hasty.begin() as other:
                    write(other, "from elsewhere")

            session.add(Mail(to="ann"))
            assert asked(session)
            session.commit()
        hasty.dispose()
        assert rows(engine) == {("mail", "a")}

    def test_a_database_that_it_does_not_know(self, engine: Engine) -> None:
        engine.dialect.name = "oracle"
        with engine.connect() as connection, pytest.raises(ConfigurationError, match="does not know oracle"):
            asked(connection)

    def test_names(self) -> None:
        number = uuid.UUID(int=5)
        assert effect_name("mail", number) == ("mail", "00000000-0000-0000-0000-000000000005")
        assert effect_name("mail", 12) == effect_name("mail", "12") == ("mail", "12")
        longest = "x" * KIND_LENGTH, "y" * OBJECT_ID_LENGTH
        assert effect_name(*longest) == longest

    @pytest.mark.parametrize(
        ("kind", "object_id", "error", "told"),
        [
            (None, "a", TypeError, "kind is of type NoneType; pass a str"),
            ("mail", None, TypeError, "object_id is of type NoneType; pass a str, int or UUID"),
            ("mail", True, TypeError, "object_id is of type bool"),
            ("mail", 1.5, TypeError, "object_id is of type float"),
            ("", "a", ValueError, "kind has 0 characters; pass 1 to 100"),
            ("mail", "x" * (OBJECT_ID_LENGTH + 1), ValueError, "object_id has 256 characters; pass 1 to 255"),
            ("mail", "a ", ValueError, "object_id 'a ' ends in a space"),
        ],
    )
    def test_names_that_cannot_be_stored(
        self, engine: Engine, kind: Any, object_id: Any, error: type[Exception], told: str
    ) -> None:
        with engine.connect() as connection, pytest.raises(error, match=told):
            asked(connection, object_id, kind)


class TestTable:
    def test_it_is_created_once(self, engine: Engine) -> None:
        assert inspect(engine).get_table_names() == ["celery_dedupe_effects", "mail"]
        create_tables(str(engine.url))
        create_tables(engine)
        with engine.begin() as connection:
            create_tables(connection)
        found = inspect(engine)
        assert found.get_table_names() == ["celery_dedupe_claims", "celery_dedupe_effects", "mail"]
        assert found.get_pk_constraint("celery_dedupe_effects")["constrained_columns"] == [
            "kind",
            "object_id",
        ]
        assert not any(column["nullable"] for column in found.get_columns("celery_dedupe_effects"))

    def test_old_rows_can_be_told_by_their_age(self, engine: Engine) -> None:
        with engine.begin() as connection:
            assert asked(connection)
            age = dt.datetime.now(dt.timezone.utc).replace(tzinfo=None) - connection.scalar(
                select(func.max(effects.c.created_at))
            )
            assert abs(age) < dt.timedelta(minutes=1)
            gone = delete(effects).where(effects.c.created_at < dt.datetime(2000, 1, 1))  # noqa: DTZ001
            assert connection.execute(gone).rowcount == 0

    def test_alembic_makes_it_and_finds_nothing_to_change(self, tmp_path: Path) -> None:
        engine = create_engine(f"sqlite:///{tmp_path}/alembic.sqlite")
        own = MetaData()
        Table("mail", own, Column("id", Integer, primary_key=True), Column("to", String(50)))
        with engine.begin() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            # As in env.py: target_metadata = [Base.metadata, celery_dedupe.tables.metadata]
            operations = produce_migrations(context, [own, metadata]).upgrade_ops
            assert operations is not None
            code = render_python_code(operations, migration_context=context)
            names: dict[str, Any] = {}
            exec(f"{IMPORTS}\ndef upgrade():\n    {code}", names)  # as in a file of versions/
            with Operations.context(context):
                names["upgrade"]()
            assert compare_metadata(context, [own, metadata]) == []
            assert [asked(connection), asked(connection)] == [True, False]
        engine.dispose()

    def test_each_database_tells_upper_case_from_lower(self) -> None:
        ddl = str(CreateTable(effects).compile(dialect=mysql.dialect()))
        assert ddl.count("COLLATE utf8mb4_bin") == 2
        assert "ENGINE=InnoDB" in ddl
        for dialect in (postgresql.dialect(), mssql.dialect()):
            assert "utf8" not in str(CreateTable(effects).compile(dialect=dialect))


def test_what_the_documentation_shows_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    names: dict[str, Any] = {"__name__": "shop"}
    with Celery("shop", set_as_current=False) as app:
        app.set_current()
        exec(blocks[0], names)
        with names["engine"].begin() as connection:
            connection.execute(text("CREATE TABLE charges (order_id TEXT)"))
        for block in blocks[1:]:
            exec(block, names)
        charge = names["charge_again_if_told_to"]
        assert [charge("A1"), charge("A1"), charge("B2")] == [True, False, True]
        with names["engine"].connect() as connection:
            charges = connection.execute(text("SELECT order_id FROM charges")).scalars().all()
    assert charges == ["A1", "B2"]
    assert names["target_metadata"][1] is metadata
    names["engine"].dispose()
