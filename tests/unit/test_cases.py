"""Every case that users of task locks have reported has a test that names it; docs/cases.md says which."""

from __future__ import annotations

import ast
import re
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
def cases_of_tests() -> dict[str, set[int]]:
    """By pytest's names of all tests, classes and modules: the cases that their docstrings name."""
    found: dict[str, set[int]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        _collect(ast.parse(path.read_text()), path.relative_to(ROOT).as_posix(), found)
    return found


def _collect(node: Any, name: str, found: dict[str, set[int]]) -> None:
    named = " ".join(NAMED.findall(ast.get_docstring(node) or ""))
    found[name] = {int(number) for number in re.findall(r"\d+", named)}
    for part in node.body:
        if isinstance(part, (ast.ClassDef, ast.FunctionDef)) and part.name.lower().startswith("test"):
            _collect(part, f"{name}::{part.name}", found)


def rows() -> dict[int, list[str]]:
    text = (ROOT / "docs" / "cases.md").read_text()
    return {int(number): re.findall(r"`([^`]+)`", tests) for number, tests in ROW.findall(text)}


def test_the_table_has_them_all():
    assert tuple(rows()) == CASES


@pytest.mark.parametrize("case", CASES)
def test_a_row_names_tests_that_are_there_and_one_that_names_the_case(case):
    tests = cases_of_tests()
    assert [name for name in rows()[case] if name not in tests] == []
    assert any(case in tests[name] for name in rows()[case])


def test_no_test_names_a_case_that_nobody_reported():
    assert set().union(*cases_of_tests().values()) <= set(CASES)
