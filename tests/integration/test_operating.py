"""The command line in processes of its own, and docs/operating.md, whose examples are what it prints."""

from __future__ import annotations

import ast
import json
import re
import shlex
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from celery_dedupe.core.asks import Attempt, BeginAsk, Begun, Caller, ClaimAsk, FinishAsk
from celery_dedupe.store.connect import open_store
from celery_dedupe.store.protocol import Store
from tests.harness.processes import ROOT

pytestmark = pytest.mark.integration

PAGE = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
(APP,) = re.findall(r"<!-- app -->\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SHOWN = dict(re.findall(r"^```\n\$ celery -A proj dedupe (.*?)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
VOLATILE = [
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "TASK-ID"),
    (re.compile(r"\S+@\S+(?= released|: rules)"), "SOMEBODY"),
    (re.compile(r"(?<=rules )\s*[0-9a-f]{12}\b"), "RULES"),  # any new field of a policy changes it
    (re.compile(r"valkey [\d.]+"), "VALKEY"),
    (re.compile(r"redis://\S+"), "URL"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?"), "DATE"),
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
        assert plain(done.stderr + done.stdout) == plain(SHOWN[words]), done.stderr + done.stdout
        assert done.returncode == exit_code
        return done.stdout

    return check


@pytest.fixture
def store(valkey) -> Iterator[Store]:
    """Where the app's claims live."""
    with closing(open_store(valkey.store_url)) as store:
        yield store


@pytest.fixture
def key_of(workers, proj):
    """``key_of("reports.make", "acme")``: the key of that call."""

    def key(task: str, *args: object) -> str:
        explained = workers.celery(proj, "dedupe", "explain", task, json.dumps(args), "--json")
        (lock,) = json.loads(explained.stdout)["locks"]
        found: str = lock["key"]
        return found

    return key


def queue(store: Store, key: str, task_id: str) -> None:
    assert store.claim([ClaimAsk(key, 7_200_000, frozenset())], Caller(task_id)) is None


def run(store: Store, key: str, task_id: str) -> None:
    attempt = Attempt(task_id, "tok", node="celery@web1")
    assert isinstance(store.begin([BeginAsk(key, slot=True, lease=60_000)], attempt), Begun)


def leave_done(store: Store, key: str, task_id: str) -> None:
    store.finish([FinishAsk(key, "", "done", 30 * 86_400_000)], Attempt(task_id, ""), well=True)


def test_every_example_of_the_page_is_tried():
    calls = [
        node for node in ast.walk(ast.parse(Path(__file__).read_text("utf-8"))) if isinstance(node, ast.Call)
    ]
    tried = {ast.literal_eval(call.args[0]) for call in calls if getattr(call.func, "id", "") == "says"}
    assert SHOWN.keys() == tried


def test_rules(says):
    says("rules")


def test_explain(says, store, key_of):
    run(store, key_of("reports.make", "acme"), "0f6e9c5a-2d3f-4c0b-9a55-5f2b1a6f7a11")
    says("explain reports.make '[\"acme\"]'", exit_code=1)


def test_locks(says, store, key_of):
    leave_done(store, key_of("billing.charge_card", 7), "7d0cd1a5-49a5-4a58-8d0c-b5a1a5d0a1c2")
    run(store, key_of("reports.make", "acme"), "0f6e9c5a-2d3f-4c0b-9a55-5f2b1a6f7a11")
    queue(store, key_of("sync.account", 1, "a change"), "b2f4c0de-3c39-4f0e-8c57-02d1ce3b7a54")
    says("locks")


def test_release(says, store, key_of):
    for customer in ("acme", "bolt", "cole"):
        queue(store, key_of("reports.make", customer), str(uuid.uuid4()))
    says("release --task 'reports.*' --state queued --yes")


def test_stats(says, store):
    made = {"published": 120, "dropped": 1080, "started": 121, "lease_lost": 1}
    synced = {"published": 40, "started": 30, "skipped": 10, "waited": 4, "unprotected": 2}
    for task, counts in (("reports.make", made), ("sync.account", synced)):
        store.count("dedupe:stats", {(task, word): number for word, number in counts.items()})
    says("stats --since 24h")


def test_check(says, workers, proj):
    workers(proj)
    says("check")
