"""What pages show in fences, and a program of its own to run it in."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.harness.processes import ROOT

_FENCE = re.compile(r"(?:<!-- (\w+) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Snippet(NamedTuple):
    """What stands between two fences, its language, and the mark in the comment above it."""

    mark: str
    language: str
    text: str


def snippets(page: Path) -> list[Snippet]:
    """All snippets of a page, in order."""
    return [Snippet(*found) for found in _FENCE.findall(page.read_text(encoding="utf-8"))]


def run(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run a program, or the tests that it consists of, in a folder. Every warning is an error."""
    path = folder / "test_snippet.py"
    path.write_text(text, encoding="utf-8")
    (folder / "pytest.ini").touch()
    how = ["-m", "pytest", "-q"] if "def test_" in text else []
    command = [sys.executable, "-W", "error", *how, path]
    env = {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60)
