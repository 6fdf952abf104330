"""``dedupe release``."""

from __future__ import annotations

import getpass
import json
import logging
import logging.config
import socket

import pytest

from celery_dedupe.core.asks import Attempt, BeginAsk, Caller, ClaimAsk, FinishAsk
from celery_dedupe.core.holdings import holdings
from celery_dedupe.errors import StoreUnavailable


def key(scope, number=0):
    return f"dedupe:{scope}:{number:032x}"


def claim(a, key, task_id):
    assert a.store.claim([ClaimAsk(key, 3_600_000, frozenset())], Caller(task_id)) is None


def begin(a, key, task_id):
    a.store.begin([BeginAsk(key, slot=True, limit=9, lease=60_000)], Attempt(task_id, f"token of {task_id}"))


def held(a):
    return sorted(part.task_id for _, record in a.store.scan("*") for part in holdings(record))


@pytest.fixture
def a(local_app):
    """One key with one of each state, and two more that are queued."""
    a = local_app({"t": "until_finished"})
    a.store.finish([FinishAsk(key("t"), "", "done", 0)], Attempt("done", ""), well=True)
    a.clock.turn(1)
    begin(a, key("t"), "running")
    a.clock.turn(1)
    claim(a, key("t"), "queued")
    a.clock.turn(1)
    for number in (1, 2):
        claim(a, key("t", number), f"queued{number}")
        a.clock.turn(1)
    return a


@pytest.fixture
def audited(caplog):
    return lambda: [record.getMessage() for record in caplog.records if record.name == "celery_dedupe.audit"]


class TestByKey:
    def test_what_waits_and_what_is_done_goes_and_what_runs_stays(self, dedupe_command, a):
        result = dedupe_command(a.app, "release", key("t"), "--yes")
        assert result.output == "freed 1 queued, 1 done\nleft 1 running, which --force frees\n"
        assert result.exit_code == 1, "not all is free"
        assert held(a) == ["queued1", "queued2", "running"]

    def test_one_is_freed_without_a_question(self, dedupe_command, a):
        result = dedupe_command(a.app, "release", key("t", 1))
        assert (result.exit_code, result.output) == (0, "freed 1 queued\n")
        assert "queued1" not in held(a)

    def test_force_frees_what_runs(self, dedupe_command, a):
        result = dedupe_command(a.app, "release", key("t"), "--force", "--yes")
        assert (result.exit_code, result.output) == (0, "freed 1 queued, 1 running, 1 done\n")
        assert held(a) == ["queued1", "queued2"]

    def test_one_state(self, dedupe_command, a):
        assert dedupe_command(a.app, "release", key("t"), "--state", "done").exit_code == 0
        assert held(a) == ["queued", "queued1", "queued2", "running"]
        result = dedupe_command(a.app, "release", key("t"), "--state", "running")
        assert (result.exit_code, result.output) == (
            1,
            "freed nothing\nleft 1 running, which --force frees\n",
        )
        assert dedupe_command(a.app, "release", key("t"), "--state", "running", "--force").exit_code == 0
        assert held(a) == ["queued", "queued1", "queued2"]

    def test_a_key_that_nobody_holds(self, dedupe_command, a):
        result = dedupe_command(a.app, "release", key("t", 99))
        assert (result.exit_code, result.output) == (0, "freed nothing\n")

    @pytest.mark.parametrize("name", ["t", "dedupe:t", "other:t:0", "dedupe:other:t:0"])
    def test_what_is_no_key_of_the_app(self, dedupe_command, a, name):
        claim(a, name, "foreign")
        result = dedupe_command(a.app, "release", name)
        assert result.exit_code == 2
        assert f"{name!r} is no key of this app" in result.output
        assert "foreign" in held(a)


class TestByGlob:
    def test_all_that_waits(self, dedupe_command, a):
        claim(a, key("other"), "other")
        result = dedupe_command(a.app, "release", "--task", "t*", "--state", "queued", "--yes")
        assert (result.exit_code, result.output) == (0, "freed 3 queued\n")
        assert held(a) == ["done", "other", "running"]

    def test_all_but_what_runs(self, dedupe_command, a):
        result = dedupe_command(a.app, "release", "--task", "t", "--yes")
        assert result.exit_code == 1
        assert held(a) == ["running"]

    def test_all(self, dedupe_command, a):
        assert dedupe_command(a.app, "release", "--task", "*", "--force", "--yes").exit_code == 0
        assert held(a) == []

    def test_a_scope_that_the_glob_reaches_twice_counts_once(self, dedupe_command, local_app):
        a = local_app({"pay": {"lock": "once", "scope": "payments"}})
        a.task(name="pay").delay(1)
        assert dedupe_command(a.app, "release", "--task", "pay*").output == "freed 1 queued\n"

    def test_it_asks_before_many(self, dedupe_command, a):
        words = ("release", "--task", "t", "--state", "queued")
        for said in ("n\n", ""):
            result = dedupe_command(a.app, *words, input=said)
            assert result.exit_code == 1
            assert "Free 3 queued? [y/N]" in result.output
            assert len(held(a)) == 5
        result = dedupe_command(a.app, *words, input="y\n")
        assert result.exit_code == 0
        assert held(a) == ["done", "running"]

    def test_what_has_changed_hands_since_the_question_stays(self, dedupe_command, a, monkeypatch):
        def confirm(*args, **named):
            a.store.withdraw([key("t", 1)], "queued1")
            claim(a, key("t", 1), "another")
            begin(a, key("t", 2), "queued2")

        monkeypatch.setattr("click.confirm", confirm)
        result = dedupe_command(a.app, "release", "--task", "t", "--state", "queued")
        assert result.output == "freed 1 queued\n2 had changed hands or ended by then\n"
        assert held(a) == ["another", "done", "queued2", "running"]

    def test_more_than_one_call_takes(self, dedupe_command, a, monkeypatch):
        monkeypatch.setattr("celery_dedupe.cli.release.AT_ONCE", 10)
        for number in range(100, 135):
            claim(a, key("t", number), f"q{number}")
        assert (
            "freed 38 queued"
            in dedupe_command(a.app, "release", "--task", "t", "--state", "queued", "--yes").output
        )
        assert held(a) == ["done", "running"]


class TestDryRun:
    def test_it_shows_what_would_go_and_what_would_stay(self, dedupe_command, a):
        result = dedupe_command(a.app, "release", key("t"), "--dry-run")
        assert result.exit_code == 1
        assert [line.split()[0] for line in result.output.splitlines()[:4]] == [
            *("STATE", "done", "running", "queued"),
        ]
        assert result.output.endswith("would free 1 queued, 1 done\nleft 1 running, which --force frees\n")

    def test_it_changes_nothing_and_asks_nothing(self, dedupe_command, a, audited):
        before = dict(a.store.scan("*"))
        dedupe_command(a.app, "release", "--task", "*", "--force", "--dry-run")
        assert dict(a.store.scan("*")) == before
        assert audited() == []


class TestForPrograms:
    def test_a_release(self, dedupe_command, a):
        result = dedupe_command(a.app, "release", key("t"), "--yes", "--json")
        assert json.loads(result.stdout) == {
            "freed": {"done": 1, "queued": 1},
            "changed": 0,
            "left": {"running": 1},
            "dry_run": False,
        }

    def test_a_dry_run(self, dedupe_command, a):
        result = dedupe_command(a.app, "release", "--task", "t", "--force", "--dry-run", "--json")
        assert json.loads(result.stdout) == {
            "freed": {"done": 1, "running": 1, "queued": 3},
            "changed": 0,
            "left": {},
            "dry_run": True,
        }


class TestAudit:
    def test_one_line_says_who_freed_what(self, dedupe_command, a, audited):
        dedupe_command(a.app, "release", key("t", 1))
        who = f"{getpass.getuser()}@{socket.gethostname()}"
        assert audited() == [f"celery-dedupe: {who} released 1 queued of {key('t', 1)}: queued1"]

    def test_of_many_it_names_some(self, dedupe_command, a, audited):
        claim(a, key("t", 3), "queued3")
        dedupe_command(a.app, "release", "--task", "t", "--state", "queued", "--yes")
        (line,) = audited()
        assert line.endswith(
            "released 4 queued of --task 't' --state queued: queued, queued1, queued2 and 1 more"
        )

    def test_nothing_freed_is_no_line(self, dedupe_command, a, audited):
        dedupe_command(a.app, "release", key("t", 99))
        dedupe_command(a.app, "release", "--task", "t", input="n\n")
        assert audited() == []

    def test_a_store_that_goes_away_midway(self, dedupe_command, a, audited, monkeypatch):
        monkeypatch.setattr("celery_dedupe.cli.release.AT_ONCE", 2)
        evict = a.store.evict

        def once(asks):
            monkeypatch.setattr(a.store, "evict", away)
            return evict(asks)

        def away(asks):
            raise StoreUnavailable("the store is away")

        monkeypatch.setattr(a.store, "evict", once)
        result = dedupe_command(a.app, "release", "--task", "t", "--state", "queued", "--yes")
        assert result.exit_code == 3
        assert "released 2 queued" in audited()[0]

    def test_where_nobody_has_a_name(self, dedupe_command, a, audited, monkeypatch):
        def nobody():
            raise OSError("No username set in the environment")

        monkeypatch.setattr(getpass, "getuser", nobody)
        dedupe_command(a.app, "release", key("t", 1))
        assert audited()[0].startswith("celery-dedupe: uid ")

    def test_a_logging_configuration_does_not_silence_it(self, dedupe_command, a):
        lines = []

        class Lines(logging.Handler):
            def emit(self, record):
                lines.append(record.getMessage())

        handler = {"()": Lines}
        logging.config.dictConfig(
            {"version": 1, "handlers": {"h": handler}, "loggers": {"celery_dedupe": {"handlers": ["h"]}}}
        )
        dedupe_command(a.app, "release", key("t", 1))
        assert len(lines) == 1


@pytest.mark.parametrize("words", [(), ("dedupe:t:0", "--task", "t")])
def test_one_key_or_tasks(dedupe_command, a, words):
    result = dedupe_command(a.app, "release", *words)
    assert result.exit_code == 2
    assert "name one KEY, or tasks by --task GLOB" in result.output
