"""docs/getting-started.md: whoever does what it says sees what it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.processes import ROOT, Process
from tests.harness.reaper import Reaper
from tests.harness.servers import ValkeyServer
from tests.harness.snippets import snippets

pytestmark = pytest.mark.integration

SHOWN = snippets(ROOT / "docs" / "getting-started.md")
MODULE = "\n".join(text for _, language, text in SHOWN if text.startswith("# proj.py"))
(SESSION,) = (text for _, language, text in SHOWN if text.startswith(">>> "))
READY, DROPPED = (text.strip() for _, language, text in SHOWN if not language)


def as_pattern(line: str) -> str:
    """What a line is like where ids, versions, addresses and times are others'."""
    varies = re.compile(r"[\d.]+ s|\d+ of \d+|[\da-f]{4}…|valkey [\d.]+|redis://\S+|queued|running")
    return "".join(
        r"[\w:/. -]+" if varies.fullmatch(part) else re.escape(part)
        for part in re.split(f"({varies.pattern})", line)
    )


def test_a_first_duplicate(valkey: ValkeyServer, reaper: Reaper, tmp_path: Path) -> None:
    module = MODULE.replace("redis://localhost:6379/0", valkey.broker_url)
    module = module.replace("redis://localhost:6379/1", valkey.backend_url)
    (tmp_path / "proj.py").write_text(module)
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    worker = Process(
        [sys.executable, "-m", "celery", "-A", "proj", "worker", "--loglevel", "INFO", "--pool", "solo"],
        name="worker",
        reaper=reaper,
        log_path=tmp_path / "worker.log",
        env=env,
    )
    try:
        worker.wait_for_log("all in place", 60)
        assert re.search(as_pattern(READY), worker.log), worker.log

        session = f"import doctest, logging\nlogging.basicConfig(level='INFO')\ntest = {SESSION!r}\n"
        session += "case = doctest.DocTestParser().get_doctest(test, {}, 'page', None, None)\n"
        session += "raise SystemExit(doctest.DocTestRunner().run(case).failed)"
        done = subprocess.run(
            [sys.executable, "-c", session],
            cwd=tmp_path,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(as_pattern(DROPPED), done.stderr), done.stderr
    finally:
        worker.kill()
