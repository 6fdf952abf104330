"""``make demo``: its story comes true, it says so where it does not, and it leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.harness.processes import ROOT, Process, is_alive
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

README = (ROOT / "README.md").read_text(encoding="utf-8")
DEMO = ROOT / "examples" / "quickstart" / "demo.py"


@pytest.fixture
def scratch():
    # Not tmp_path, whose length may be more than the address of a Unix socket holds.
    with tempfile.TemporaryDirectory(prefix="demo-") as folder:
        yield Path(folder)


@pytest.fixture
def start_demo(reaper, scratch, tmp_path):
    demos = []

    def start(**env):
        log = tmp_path / "demo.log"
        env = {"LEGACY_DEDUPE_MODE": "enforce", "TMPDIR": str(scratch), **env}
        demos.append(Process([sys.executable, DEMO], name="demo", reaper=reaper, log_path=log, env=env))
        return demos[-1]

    yield start
    for demo in demos:
        demo.kill()


def without_numbers(text):
    return {re.sub(r"\d+", "N", line) for line in text.splitlines()}


def verdicts(output):
    return re.findall(r"^  (ok|FAILED)  +(.*?)$", output, re.MULTILINE)


def test_the_story_comes_true(start_demo, scratch):
    demo = start_demo()

    assert demo.wait(100) == 0, demo.log

    assert {verdict for verdict, _ in verdicts(demo.log)} == {"ok"}
    for claim in (
        "ten clicks made one run",
        "nine of them are duplicates of it",
        "all ten got the same file",
        "the sync never ran beside itself",
        "it ran once more, for both changes",
        "the copy is of the last version",
        r"\d+ calls sent the digest twice",
        "2 s lie between the two",
        "the dead run held its lock at first",
        "the lock freed itself within the lease of 3 s",
        "the next backup ran to its end",
    ):
        assert re.search(rf"^  ok      {claim}$", demo.log, re.MULTILINE), claim
    calls, runs, saved = map(int, re.search(r"(\d+) calls, (\d+) runs: (\d+) runs saved", demo.log).groups())
    assert (runs, saved) == (7, calls - 7)
    assert "\x1b" not in demo.log, "no colour where nobody looks"
    assert not list(scratch.iterdir())
    picture = re.search(r"<!-- demo -->\n```\n(.*?)```", README, re.DOTALL)[1]
    told = {line for line in without_numbers(picture) if re.match(r"N\.|   (task|rule)|  ok|N calls", line)}
    assert len(told) == 4 + 3 + 3 + 11 + 1
    assert told <= without_numbers(demo.log)


def test_without_the_extension_it_says_what_did_not_happen(start_demo):
    demo = start_demo(LEGACY_DEDUPE_MODE="off")

    assert demo.wait(100) == 1, demo.log

    failed = [claim for verdict, claim in verdicts(demo.log) if verdict == "FAILED"]
    assert "ten clicks made one run: 10 runs" in failed
    assert "the sync never ran beside itself: two runs overlap" in failed
    assert "2 calls sent the digest twice: 2 runs, 0 calls dropped" in failed
    assert "the dead run held its lock at first: no call was dropped" in failed
    assert "17 calls, 17 runs: 0 runs saved" in demo.log


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_it_leaves_nothing_behind_however_it_ends(start_demo, scratch, number, exit_code):
    demo = start_demo()
    demo.wait_for_log("1. Ten clicks", 60)
    others = psutil.Process(demo.pid).children(recursive=True)
    assert sum("valkey-server" in process.name() for process in others) == 1
    assert sum("worker" in process.cmdline() for process in others) >= 3, "a worker and its two children"

    os.kill(demo.pid, number)

    assert demo.wait() == exit_code
    wait_until(lambda: not any(is_alive(process.pid) for process in others))
    assert "Traceback" not in demo.log
    if number != signal.SIGKILL:
        assert not list(scratch.iterdir())
