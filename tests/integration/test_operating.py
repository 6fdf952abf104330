"""The command line in processes of its own, and docs/operating.md, whose examples are what it prints."""

from __future__ import annotations

import ast
import json
import re
import shlex
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from celery_dedupe.core.asks import Attempt, BeginAsk, Begun
from celery_dedupe.store.connect import open_store
from tests.harness.processes import ROOT

pytestmark = pytest.mark.integration

PAGE = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
(APP,) = re.findall(r"<!-- app -->\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SHOWN = dict(re.findall(r"^```\n\$ celery -A proj dedupe (.*?)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
VOLATILE = [
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "TASK-ID"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "DATE"),
    (re.compile(r"\b\d{16}\b"), "FENCE"),
    (re.compile(r"\b(\d+(d|h|m|s|ms)\b ?)+(?=ago| |;|\.|$)", re.MULTILINE), "TIME "),
    (re.compile(r"-+|  +"), " "),
]


@pytest.fixture
def proj(tmp_path: Path, valkey) -> SimpleNamespace:
    """The page's app as a module of its own, and what its processes must know of it."""
    (tmp_path / "proj.py").write_text(APP)
    env = {
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
        "CELERY_BROKER_URL": valkey.broker_url,
        "CELERY_RESULT_BACKEND": valkey.store_url,
    }
    return SimpleNamespace(module="proj", queue="celery", env=env, folder=tmp_path)


def plain(text: str) -> str:
    """What of an output is the same each time."""
    for pattern, word in VOLATILE:
        text = pattern.sub(word, text)
    return "\n".join(line.strip() for line in text.splitlines())


@pytest.fixture
def says(workers, proj):
    """``says("rules")``: asserts that the command prints what the page shows."""

    def check(words: str, exit_code: int = 0) -> str:
        done = workers.celery(proj, "dedupe", *shlex.split(words))
        assert plain(done.stdout + done.stderr) == plain(SHOWN[words]), done.stdout + done.stderr
        assert done.returncode == exit_code
        return done.stdout

    return check


@pytest.fixture
def hold(workers, proj, valkey):
    """``hold(task, arguments, task_id, node)``: a worker there runs the call."""

    def start(task: str, arguments: str, task_id: str, node: str) -> None:
        explained = workers.celery(proj, "dedupe", "explain", task, arguments, "--json")
        (lock,) = json.loads(explained.stdout)["locks"]
        with closing(open_store(valkey.store_url)) as store:
            ask = BeginAsk(lock["key"], slot=True, lease=60_000)
            assert isinstance(store.begin([ask], Attempt(task_id, "tok", node=node)), Begun)

    return start


def test_every_example_of_the_page_is_tried():
    calls = [
        node for node in ast.walk(ast.parse(Path(__file__).read_text("utf-8"))) if isinstance(node, ast.Call)
    ]
    tried = {ast.literal_eval(call.args[0]) for call in calls if getattr(call.func, "id", "") == "says"}
    assert SHOWN.keys() == tried


def test_rules(says):
    says("rules")


def test_explain(says, hold):
    hold("reports.make", '["acme"]', "0f6e9c5a-2d3f-4c0b-9a55-5f2b1a6f7a11", "celery@web1")
    says("explain reports.make '[\"acme\"]'", exit_code=1)
