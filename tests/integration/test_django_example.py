"""``examples/django``: what it says comes true, and it says so where it does not."""

from __future__ import annotations

import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from tests.harness.processes import ROOT, Process, is_alive
from tests.harness.reaper import Reaper
from tests.harness.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("celery.contrib.django") is None, reason="it came with Celery 5.4"),
]

RUN = ROOT / "examples" / "django" / "run.py"


@pytest.fixture
def start_example(reaper: Reaper, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []
    # Not tmp_path, whose length may be more than the address of a Unix socket holds.
    with tempfile.TemporaryDirectory(prefix="shop-") as scratch:

        def start(**env: str) -> Process:
            env = {"SHOP_DEDUPE_MODE": "enforce", "TMPDIR": scratch, **env}
            log = tmp_path / "run.log"
            started.append(
                Process([sys.executable, str(RUN)], name="run", reaper=reaper, log_path=log, env=env)
            )
            return started[-1]

        yield start
        for process in started:
            process.kill()
        assert not list(Path(scratch).iterdir())


def claims(log: str, verdict: str) -> list[str]:
    return re.findall(rf"^  {verdict} +(.*)$", log, re.MULTILINE)


def test_it_comes_true(start_example: Callable[..., Process]) -> None:
    run = start_example()

    assert run.wait(100) == 0, run.log

    assert claims(run.log, "FAILED") == []
    assert claims(run.log, "ok") == [
        "manage.py check finds no issue",
        "nothing was sent",
        "one message was sent, so the rollback had claimed nothing",
        "a plain delay is a duplicate of it",
        "when the invoice is made, the next call is accepted",
        "five calls that were not rolled back made two invoices",
        "it was attempted three times",
        "it was charged once",
        "one of the two says that it did it",
    ]
    assert "Traceback" not in run.log


def test_without_the_extension_it_says_what_did_not_happen(start_example: Callable[..., Process]) -> None:
    run = start_example(SHOP_DEDUPE_MODE="off")

    assert run.wait(100) == 1, run.log

    assert claims(run.log, "FAILED") == [
        "one message was sent, so the rollback had claimed nothing: 3 messages",
        "a plain delay is a duplicate of it: it was sent",
        "five calls that were not rolled back made two invoices: 5 invoices",
    ]


def test_a_bad_rule_is_told_by_its_check(start_example: Callable[..., Process]) -> None:
    run = start_example(SHOP_DEDUPE_MODE="enforced")

    assert run.wait(100) == 1, run.log

    assert claims(run.log, "ok") == []
    assert "Traceback" not in run.log
    assert "(celery_dedupe.E001) dedupe_mode 'enforced' is no mode; did you mean 'enforce'?" in run.log


def test_it_leaves_nothing_behind_when_it_is_told_to_end(start_example: Callable[..., Process]) -> None:
    run = start_example()
    run.wait_for_log("A worker starts", 60)
    others = wait_until(
        lambda: (found := psutil.Process(run.pid).children(recursive=True)) and len(found) >= 2 and found
    )

    run.signal(signal.SIGTERM)

    assert run.wait() == 128 + signal.SIGTERM
    wait_until(lambda: not any(is_alive(process.pid) for process in others))
    assert "Traceback" not in run.log
