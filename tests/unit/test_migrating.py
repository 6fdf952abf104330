"""docs/migrating.md: no option of the four libraries is left out, and what stands beside it is so."""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import Task

from celery_dedupe import duplicate_of
from celery_dedupe.core.policy import parse_policies
from tests.apps.rollout import LIBRARIES, MISSED, Library
from tests.harness.processes import ROOT

PAGE = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
# Every option, setting, error and function that a user of the library may name.
OPTIONS = {
    "celery-once": {
        "QueueOnce", "AlreadyQueued", "countdown", "ONCE", "backend", "settings", "url", "default_timeout",
        "blocking", "blocking_timeout", "location", "once", "graceful", "timeout", "keys",
        "unlock_before_run", "celery_once.backends.Redis", "celery_once.backends.File", "get_key",
        "clear_lock", "ONCE_DEFAULT_TIMEOUT",
    },
    "celery-singleton": {
        "Singleton", "unique_on", "raise_on_duplicate", "lock_expiry", "singleton_key_prefix",
        "singleton_backend_class", "singleton_backend_kwargs", "singleton_backend_url",
        "singleton_raise_on_duplicate", "singleton_lock_expiry", "clear_locks", "DuplicateTaskError",
        "task_id", "on_duplicate", "generate_lock", "aquire_lock", "get_existing_task_id", "lock_and_run",
        "release_lock", "unlock",
    },
    "celery-heimdall": {
        "HeimdallTask", "heimdall", "unique", "unique_timeout", "unique_wait_for_expiry", "unique_raises",
        "unique_lock_blocking", "unique_lock_timeout", "key", "lock_prefix", "rate_limit_prefix",
        "rate_limit", "times", "per", "heimdall_unique_timeout", "heimdall_unique_raises",
        "heimdall_unique_lock_blocking", "heimdall_unique_lock_timeout", "heimdall_lock_prefix",
        "heimdall_rate_limit_prefix", "RateLimit", "strategy", "Strategy", "setup_redis", "only_after",
        "AlreadyQueuedError", "likely_culprit", "expires_in", "heimdall-inspector", "--db", "--enable-events",
    },
    "celery-once-task": {
        "OnceTask", "OnceTaskLocked", "OnceTaskUnlockBootStep", "configure", "setup_once_task_signals",
        "teardown_once_task_signals", "queue_lock", "running_lock", "queue_lock_timeout",
        "running_lock_timeout", "redis_url", "celery_once_task.django.OnceTaskAppConfig",
        "CELERY_ONCE_REDIS_URL", "CELERY_ONCE_QUEUE_LOCK_TIMEOUT", "CELERY_ONCE_RUNNING_LOCK_TIMEOUT",
        "get_config", "reset_config", "get_redis", "reset_redis", "generate_lock_key", "lock_exists",
        "release_lock",
    },
}  # fmt: skip
# What its source reads by a name in quotes: of tasks, of calls and of settings.
READ = {
    "celery-once": r"""(?:once|once_options|options|settings|config)(?:\.get\(|\[)\s*['"](\w+)['"]""",
    "celery-singleton": r"""conf\.get\(\s*"(\w+)\"""",
    "celery-heimdall": r"""(?:\bh\.get\(|\bh\[|_from_task_or_app\()\s*"(\w+)\"|"(\w+)" in h\b""",
    "celery-once-task": r"""settings,\s*"(\w+)\"""",
}
# Arguments and settings of Celery itself, and what a base class keeps for itself.
NOT_OPTIONS = {
    "retries", "task_id", "result_backend", "broker_url", "config", "once_config", "once_backend",
    "heimdall_config", "heimdall_redis", "singleton_config", "singleton_backend", "abstract",
}  # fmt: skip
BASES = {
    "celery-once": "QueueOnce",
    "celery-singleton": "Singleton",
    "celery-heimdall": "HeimdallTask",
    "celery-once-task": "OnceTask",
}

each_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)


def section(name: str) -> str:
    return PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The rows of the first table in the text, without its head."""
    lines = text.partition("\n|")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def code(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def literals(text: str) -> list[Any]:
    """The values that are written in the text, as a rule or a setting has them."""
    written = [span.rpartition(" = ")[2] for span in code(text)]
    return [ast.literal_eval(value) for value in written if re.match(r"""[{\["]|None$|False$""", value)]


@each_library
def test_no_option_is_left_out(library: Library) -> None:
    named = " ".join(span for row in rows(section(library.name)) for span in code(row[0]))
    words = re.findall(r"[\w-]+", named)
    assert (
        sorted(
            option
            for option in OPTIONS[library.name]
            if option not in words and not ("." in option and option in named)
        )
        == []
    )


@each_library
def test_every_option_has_its_like_or_a_reason(library: Library) -> None:
    for option, does, here in rows(section(library.name)):
        assert does, option
        if "none" in here.lower().partition(" ")[0]:
            assert re.match(r"none( needed)?: ", here), option
        else:
            assert here, option


@each_library
def test_its_source_has_no_other_options(library: Library) -> None:
    module = pytest.importorskip(library.module)
    folder = Path(module.__file__).parent
    source = "".join(path.read_text() for path in folder.rglob("*.py") if "contrib" not in path.parts)
    read = {name for found in re.findall(READ[library.name], source) for name in _names(found)}
    base = getattr(module, BASES[library.name])
    of_tasks = {name for name in vars(base) if not name.startswith("_") and not hasattr(Task, name)}
    exported = {
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", "").startswith(library.module)
    }
    assert len(read) > 2
    assert (read | of_tasks | exported) - NOT_OPTIONS <= OPTIONS[library.name]


def _names(found: Any) -> set[str]:
    return {found} if isinstance(found, str) else set(found) - {""}


@pytest.mark.parametrize("name", ["The rules", *OPTIONS])
def test_what_stands_beside_it_is_a_policy(name: str) -> None:
    found = [value for row in rows(section(name)) for value in literals(row[-1])]
    assert found
    for value in found:
        if value != ["celery_dedupe"]:  # INSTALLED_APPS
            parse_policies(value, where=name)


def test_the_table_of_what_is_better_is_what_the_stories_tell() -> None:
    columns = ["once", "singleton", "heimdall", "once-task"]
    told = {
        row[0].removeprefix("▸ "): {
            column for column, cell in zip(columns, row[1:5], strict=True) if cell.startswith("no")
        }
        for row in rows(section("What changes for the better"))
        if row[0].startswith("▸")
    }
    assert told == MISSED


COMBINATIONS = rows(PAGE.partition("<!-- locks -->")[2])


def value(cell: str) -> Any:
    (text,) = code(cell)
    return ast.literal_eval(text)


RULES = sorted({row[3] for row in COMBINATIONS})


@pytest.mark.parametrize("how", ["rule", "task", *(f"call {rule}" for rule in RULES)])
@pytest.mark.parametrize("row", COMBINATIONS, ids=" ".join)
def test_each_lock_is_switched_off_on_its_own(local_app: Any, row: list[str], how: str) -> None:
    """As with ``queue_lock=False`` there: by a rule, by a task, and by a call whatever its rule."""
    queue_lock, running_lock, acks_late, whole, of_a_call = (value(cell) for cell in row)
    option, rule = {}, whole
    if how == "task":
        option, rule = {"dedupe": whole}, None
    elif how != "rule":
        rule = value(how.removeprefix("call "))
    a = local_app({"t": rule})
    call = {"dedupe": of_a_call} if how.startswith("call") else {}
    sent: list[bool] = []

    def publish() -> None:
        result = t.apply_async((1,), **call)
        sent.append(result is not None and duplicate_of(result) is None)

    def meet_another() -> None:
        publish()
        for message in a.messages():
            a.start(message)

    # In a thread of its own, for what a run itself calls is another matter.
    t = a.task(lambda task, value: len(a.ran) == 1 and in_thread(meet_another), acks_late=acks_late, **option)
    publish()
    publish()
    a.start(a.messages()[0])

    assert sent == [True, not queue_lock, not (queue_lock and acks_late)]
    assert len(a.ran) == (2 if sent[-1] and not running_lock else 1)


def in_thread(function: Callable[[], None]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()
