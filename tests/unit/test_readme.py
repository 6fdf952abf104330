"""What README.md says is true: its code runs, its tables and pictures are those of the code."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import pytest
from blinker import NamedSignal
from celery import Celery

import celery_dedupe
from celery_dedupe import ConfigurationError, Policy, signals
from celery_dedupe.core.fields import FIELDS, misfit
from celery_dedupe.core.locks import LOCKS
from celery_dedupe.core.policy import parse_policies
from celery_dedupe.settings import _NAMES, read_settings
from tests.harness.snippets import run, snippets

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = snippets(ROOT / "README.md")
PYTHON = [text for _, language, text in BLOCKS if language == "python"]
RUNNING = [text for mark, _, text in BLOCKS if mark == "runs"]
LOCAL = {"url": "memory://"}


def marked(mark):
    (text,) = (text for this, _, text in BLOCKS if this == mark)
    return text


def table(title):
    """Rows of the table whose first column has this title, without the head."""
    lines = README.partition(f"\n| {title} |")[2].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def code(cell):
    (text,) = re.findall(r"^`([^`]+)`$", cell)
    return text


@pytest.mark.parametrize("text", PYTHON)
def test_python_compiles(text):
    compile(text, "README.md", "exec")


@pytest.mark.parametrize("text", RUNNING)
def test_what_is_marked_runs(text, tmp_path):
    done = run(tmp_path, text)
    assert done.returncode == 0, done.stdout + done.stderr


def test_most_code_is_marked():
    assert len(RUNNING) == 4
    assert len(PYTHON) - len(RUNNING) == 4, "the app, its celeryconfig, its stores, a task with a fence"


def test_the_first_app_works_with_the_first_rules(tmp_path):
    (tmp_path / "celeryconfig.py").write_text(marked("celeryconfig"))
    names = "'sync.account', 'crawl.page', 'other'"
    locks = f"for name in ({names}): print(*(policy.lock for policy in app.dedupe.policies(name)))"
    done = run(tmp_path, f"{PYTHON[0]}\n{locks}")
    assert done.stdout.splitlines() == ["queue_and_run", "until_started while_running None", ""], done


def test_the_error_is_what_such_a_rule_gives():
    with pytest.raises(ConfigurationError) as caught:
        parse_policies({"lock": "until_finished", "leese": "5m"}, where="dedupe_rules['reports.*']")
    assert str(caught.value) == marked("error").strip()


def test_each_lock_does_what_the_table_says():
    publish = {
        (): "-",
        ("queued",): "one is queued",
        ("queued", "running"): "one is queued or running",
        ("done", "queued", "running"): "one is queued, running or done",
    }
    expected = []
    for lock in LOCKS.values():
        refused = publish[tuple(sorted(lock.publish_blocked_by))]
        after = "remembered for `keep`" if lock.remembers else "-"
        if lock.periodic:
            refused = "`period` has not passed since the last accepted publish"
            after = "stays to the end of `period`"
        start = f"one is running{' or done' if lock.remembers else ''}" if lock.runs else "-"
        conflict = f"`{lock.on_conflict}`" if lock.runs else "-"
        expected.append([f"`{lock.name}`", refused, start, after, conflict, f"`{lock.on_store_error}`"])
    assert table("`lock`") == expected


@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)
def test_each_picture_drops_what_the_lock_drops(lock):
    picture = README.partition(f"\n`{lock.name}`: ")[2].partition("```\n")[2].partition("```")[0]
    calls, *lines = (line.partition(" ") for line in picture.splitlines())
    assert calls[0] == "calls"
    letters = re.findall(r"\w", calls[2])
    assert [letter.upper() for letter in letters] == sorted(letter.upper() for letter in letters)
    accepted = {letter for letter in letters if letter.isupper()}
    blocked = lock.publish_blocked_by
    assert "A" in accepted
    assert ("B" in accepted) == ("queued" not in blocked), "B comes while A is queued"
    assert ("C" in accepted) == ("running" not in blocked and not lock.periodic), "C comes while A runs"
    assert ("E" in accepted) == ("done" not in blocked), "E comes when all is over"
    assert "D" not in accepted, "D comes while C waits, or before the period is over"

    shown = {name: line for name, _, line in lines if len(name) == 1}
    assert shown.keys() == accepted, "one line for each that was sent"
    starts = {name: re.search(r"[\[x]", line).start() for name, line in shown.items()}
    a_ends = shown["A"].index("]")
    beside = {name for name, start in starts.items() if start < a_ends and "[" in shown[name]} - {"A"}
    refused = {name for name, line in shown.items() if "x" in line}
    assert bool(beside) == (not lock.runs and bool(accepted & {"B", "C"}))
    assert refused == (accepted & {"B", "C"} if lock.runs and lock.on_conflict == "skip" else set())


def test_each_setting_is_there_with_its_default():
    app = Celery("readme", set_as_current=False, broker="redis://broker/0", backend="redis://backend/0")
    settings = read_settings(app.conf)
    rows = {code(row[0]).removeprefix("dedupe_"): row[1] for row in table("setting")}
    assert list(rows) == list(_NAMES)
    assert rows.pop("url") == "the result backend, else the broker, if it is Redis"
    assert settings.stores["default"].url == "redis://backend/0"
    app.conf.result_backend = "rpc://"
    assert read_settings(app.conf).stores["default"].url == "redis://broker/0"
    assert rows.pop("stores") == rows.pop("store_options") == "`{}`"
    assert (list(settings.stores), settings.stores["default"].options) == (["default"], {})
    assert rows.pop("rules") == "`{}`"
    assert repr(settings.rules) == "RuleSet()"
    assert {name: ast.literal_eval(code(cell)) for name, cell in rows.items()} == {
        name: getattr(settings, name) for name in rows
    }


def test_each_policy_field_is_there_with_its_default():
    rows = {code(row[0]): ast.literal_eval(code(row[1])) for row in table("field")}
    assert set(rows) == set(FIELDS)
    defaults = dict(Policy.__init__.__kwdefaults__)
    defaults.pop("part")
    assert rows == defaults


def test_each_field_is_for_the_locks_that_are_named():
    def users(name, value=9.0):
        return {lock.name for lock in LOCKS.values() if not misfit(name, lock, value)}

    assert (
        "`queue_ttl` is for locks that refuse a publish, without `until_expired`; `lease`, `limit`, "
        "`on_conflict`, `wait_limit`, `max_deliveries` and `on_lease_lost` are for locks that refuse a start."
    ) in " ".join(README.split())
    refusing = {lock.name for lock in LOCKS.values() if lock.publish_blocked_by}
    assert users("queue_ttl") == refusing - {"until_expired"}
    runs = {lock.name for lock in LOCKS.values() if lock.runs}
    assert users("lease") == users("on_conflict") == users("wait_limit") == users("on_lease_lost") == runs
    assert users("max_deliveries") == runs
    (limit,) = (row[2] for row in table("field") if row[0] == "`limit`")
    assert set(re.findall(r"`(\w+)`", limit)) == users("limit", 2)
    assert (users("period"), users("keep")) == ({"until_expired"}, {"once"})


def test_each_error_is_there():
    errors = {
        name
        for name in celery_dedupe.__all__
        if isinstance(cls := getattr(celery_dedupe, name), type) and issubclass(cls, Exception)
    }
    assert {code(row[0]) for row in table("error")} | {"DedupeError"} == errors


def test_each_signal_is_there_with_the_fields_of_its_object():
    named = {name: signal for name, signal in vars(signals).items() if isinstance(signal, NamedSignal)}
    rows = {code(row[0]): row[1:] for row in table("signal")}
    assert rows.keys() == named.keys()
    for name, (kind, fields) in rows.items():
        assert code(kind) in named[name].__doc__
        found = [field.name for field in dataclasses.fields(getattr(signals, code(kind)))]
        assert re.findall(r"`(\w+)`", fields) == found
