"""Every case that users of task locks have reported has a test that names it; docs/cases.md says which."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CASES = (
    *(1, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 21, 22, 23, 24, 25, 26, 28, 30, 32, 33, 34, 35, 37, 38),
    *(40, 43, 45, 46, 48, 50, 51, 52, 53, 58, 59),
)
NAMED = re.compile(r"\bCases? (\d+(?:(?:, | and |, and )\d+)*)")
ROW = re.compile(r"\| (\d+) \| [^|]+ \| [^|]+ \| ([^|]+) \|")


@cache
def named_by_case() -> dict[int, set[str]]:
    """Pytest's names of the tests, classes and modules whose docstring names a case."""
    found: dict[int, set[str]] = defaultdict(set)
    for path in (ROOT / "tests").rglob("test_*.py"):
        _collect(ast.parse(path.read_text()), path.relative_to(ROOT).as_posix(), found)
    return found


def _collect(node: Any, name: str, found: dict[int, set[str]]) -> None:
    for numbers in NAMED.findall(ast.get_docstring(node) or ""):
        for number in re.findall(r"\d+", numbers):
            found[int(number)].add(name)
    for part in node.body:
        if isinstance(part, (ast.ClassDef, ast.FunctionDef)) and part.name.lower().startswith("test"):
            _collect(part, f"{name}::{part.name}", found)


def rows() -> dict[int, list[str]]:
    text = (ROOT / "docs" / "cases.md").read_text()
    return {int(number): re.findall(r"`([^`]+)`", tests) for number, tests in ROW.findall(text)}


@pytest.mark.parametrize("case", CASES)
def test_a_test_names_it(case):
    assert named_by_case()[case]


def test_no_test_names_a_case_that_nobody_reported():
    assert set(named_by_case()) <= set(CASES)


def test_the_table_has_them_all():
    assert tuple(rows()) == CASES


@pytest.mark.parametrize("case", CASES)
def test_the_tests_in_its_row_name_it(case):
    assert rows()[case]
    assert set(rows()[case]) <= named_by_case()[case]
