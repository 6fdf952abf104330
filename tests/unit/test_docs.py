"""What docs/ says is true: every snippet runs, tables and pictures are the code's, what is named is there."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from blinker import NamedSignal

import celery_dedupe
from celery_dedupe.core.locks import LOCKS
from celery_dedupe.settings import _NAMES
from tests.harness.processes import ROOT
from tests.harness.snippets import Snippet, run, snippets

DOCS = ROOT / "docs"
PAGES = {path.name: path for path in sorted(DOCS.glob("*.md"))}
# Pages whose snippets belong together, or need a server, have a test of their own, which reads the page.
OWN_TESTS = {
    "django.md": "tests/unit/test_django_app.py",
    "effects.md": "tests/unit/test_effects.py",
    "getting-started.md": "tests/integration/test_getting_started.py",
    "migrating.md": "tests/apps/rollout.py",
    "operating.md": "tests/integration/test_operating.py",
    "stores.md": "tests/unit/test_stores_page.py",
}
SHOWN = [(name, snippet) for name, path in PAGES.items() for snippet in snippets(path)]
PYTHON = [(name, snippet.text) for name, snippet in SHOWN if snippet.language == "python"]
RUNNING = [
    (name, snippet.text) for name, snippet in SHOWN if snippet.mark == "runs" and name not in OWN_TESTS
]
COMMANDS = [
    line for _, snippet in SHOWN if snippet.language == "sh" for line in snippet.text.splitlines() if line
]
EXAMPLES = "\n".join(path.read_text("utf-8") for path in sorted((ROOT / "examples").rglob("*.py")))
PATH = re.compile(r"`((?:celery_dedupe|docs|examples|tests)/[\w./-]+?)(?:::[\w:]+)?`")


def drawing(module: str) -> Any:
    """A module that writes a part of the documentation."""
    for folder in (DOCS, DOCS / "pictures"):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    return import_module(module)


@pytest.mark.parametrize(("name", "text"), PYTHON)
def test_python_is_run_by_some_test(name: str, text: str) -> None:
    marked = Snippet("runs", "python", text) in snippets(PAGES[name])
    assert marked or text in EXAMPLES or name in OWN_TESTS, (
        f"nothing runs this snippet of docs/{name}: mark it <!-- runs -->, show a part of an example as it "
        "is there, or name the test that runs the page in OWN_TESTS"
    )


@pytest.mark.parametrize(("page", "test"), OWN_TESTS.items())
def test_a_test_that_runs_a_page_reads_it(page: str, test: str) -> None:
    assert page in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "text"), RUNNING)
def test_what_is_marked_runs(name: str, text: str, tmp_path: Path) -> None:
    done = run(tmp_path, text)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_command_names_is_there(command: str) -> None:
    program, *words = command.split()
    if program == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert words[0] in targets
    elif program in ("python", "pytest"):
        assert (ROOT / words[0]).exists()
    elif program == "pip":
        extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
        assert set(re.findall(r"celery-dedupe\[(\w+)\]", command)) <= set(extras)
    else:
        assert program == "celery"


@pytest.mark.parametrize("name", PAGES)
def test_what_a_page_names_is_there(name: str) -> None:
    text = PAGES[name].read_text(encoding="utf-8")
    assert [path for path in PATH.findall(text) if not (ROOT / path).exists()] == []
    assert set(re.findall(r"\bdedupe_([a-z]\w*)", text)) <= set(_NAMES)
    assert set(re.findall(r"\b[A-Z]+_DEDUPE_([A-Z]\w*)", text)) <= {name.upper() for name in _NAMES}


def test_every_setting_is_there() -> None:
    rows = re.findall(
        r"^\| `dedupe_(\w+)` \| `CELERY_DEDUPE_(\w+)` \|", PAGES["settings.md"].read_text(), re.M
    )
    assert rows == [(name, name.upper()) for name in _NAMES]


def test_tables_are_those_of_the_code() -> None:
    tables = drawing("tables")
    for page in tables.TABLES:
        assert tables.written(page) == PAGES[page].read_text(encoding="utf-8"), "run `make redraw`"


def test_pictures_are_those_of_the_code() -> None:
    drawn = drawing("draw").pictures()
    there = {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "pictures").glob("*.svg")}
    assert drawn == there, "run `make redraw`"


@pytest.mark.parametrize("lock", LOCKS)
def test_each_lock_is_shown(lock: str) -> None:
    assert f"### {lock}\n\n![{lock}](pictures/{lock}.svg)\n" in PAGES["choosing.md"].read_text()


def test_the_chart_leads_to_each_lock_once() -> None:
    ways = drawing("chart").ways()
    assert sorted(ways) == [(lock,) for lock in sorted(LOCKS)]


def test_every_public_name_is_in_the_api() -> None:
    text = PAGES["api.md"].read_text(encoding="utf-8")
    shown = set(re.findall(r"^\.\. auto\w+:: celery_dedupe\.(\w+)$", text, re.MULTILINE))
    of_module = vars(celery_dedupe.errors)
    assert {name for name in celery_dedupe.__all__ if name not in of_module} <= shown
    assert ".. automodule:: celery_dedupe.errors\n" in text
    signals = re.findall(r"^\.\. autodata:: (\w+)$", text, re.MULTILINE)
    assert signals == [name for name, value in vars(celery_dedupe.signals).items() if is_signal(value)]


def is_signal(value: object) -> bool:
    return isinstance(value, NamedSignal)
