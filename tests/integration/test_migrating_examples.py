"""``examples/migrating``: what the rules are to do comes true, and the old library is shown to do less."""

from __future__ import annotations

import ast
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.apps.rollout import EXAMPLES, LIBRARIES, MISSED, Library
from tests.harness.processes import Process
from tests.harness.reaper import Reaper

pytestmark = [pytest.mark.integration, pytest.mark.slow]

each_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)


@pytest.fixture
def play(reaper: Reaper, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []
    with tempfile.TemporaryDirectory() as scratch:

        def start(library: Library, *side: str) -> Process:
            command = [sys.executable, str(EXAMPLES / "run.py"), library.name, *side]
            log = tmp_path / f"{library.name}.log"
            env = {"TMPDIR": scratch}
            started.append(Process(command, name="run", reaper=reaper, log_path=log, env=env))
            return started[-1]

        yield start
        if all(not process.alive for process in started):
            assert not list(Path(scratch).iterdir())
        for process in started:
            process.kill()


@each_library
def test_the_rules_do_what_they_are_to_do(play: Callable[..., Process], library: Library) -> None:
    run = play(library)

    assert run.wait(110) == 0, run.log

    assert re.findall(r"^  FAILED.*", run.log, re.MULTILINE) == []
    held = re.findall(r"^  ok +(.*)$", run.log, re.MULTILINE)
    assert {*MISSED, *library.misses} <= set(held)
    assert len(held) >= len(MISSED) + 6, "what the library was there for, too"
    assert "Traceback" not in run.log


def test_the_old_libraries_do_less(play: Callable[..., Process]) -> None:
    for library in LIBRARIES:
        pytest.importorskip(library.module)
    runs = [(library, play(library, "before")) for library in LIBRARIES]

    for library, run in runs:
        assert run.wait(110) == 1, run.log
        found = {line.rpartition(": ")[0] for line in re.findall(r"^  FAILED +(.*)$", run.log, re.MULTILINE)}
        missed = {text for text, by in MISSED.items() if library.name.removeprefix("celery-") in by}
        assert found == missed | set(library.misses), library.name


@each_library
def test_no_task_changes_but_in_its_base(library: Library) -> None:
    """Bodies and signatures are the same; of a decorator what Celery itself does not know is gone."""
    before, after = (functions(EXAMPLES / library.name / side / "tasks.py") for side in ("before", "after"))
    assert before.keys() == after.keys()
    if library.name == "celery-heimdall":
        assert "self.only_after(" in before.pop("clean_up")[0], "it is a method of the base"
    for name, (text, options) in before.items():
        assert after[name][0] == text
        assert after[name][1] == {option for option in options if option in ("bind=True", "acks_late=True")}
        assert any(option.startswith("base=") for option in options)


def functions(path: Path) -> dict[str, tuple[str, set[str]]]:
    """By name: a task without its decorator, and what the decorator was given."""
    found = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            (decorator,) = node.decorator_list
            keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
            options = {ast.unparse(keyword) for keyword in keywords}
            node.decorator_list = []
            found[node.name] = (ast.unparse(node), options)
    return found
