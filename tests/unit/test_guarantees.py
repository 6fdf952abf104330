"""docs/guarantees.md names tests; each of them is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = sorted(
    set(re.findall(r"tests/[\w/]+\.py(?:::\w+)?", (ROOT / "docs/guarantees.md").read_text("utf-8")))
)


def test_the_page_names_tests():
    assert len(NAMED) > 20


@pytest.mark.parametrize("named", NAMED)
def test_every_test_that_the_page_names_is_there(named):
    path, _, name = named.partition("::")
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    tests = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert not name or name in tests
