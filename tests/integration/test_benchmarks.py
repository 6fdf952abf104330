"""Each row of the benchmarks runs, with little of everything; what it finds is not looked at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.benchmarks.figures import Figure, Setting, ratio
from tests.benchmarks.report import TITLES, Section, page, table
from tests.benchmarks.rows import ROWS
from tests.harness.reaper import Reaper

pytestmark = pytest.mark.integration
EXACT = ("round-trips", "memory")


@pytest.mark.parametrize("name", ROWS)
def test_a_row_runs(name: str, reaper: Reaper) -> None:
    figures = ROWS[name](Setting(rounds=1, size=0.002, reaper=reaper))
    assert all(figure.what and figure.value for figure in figures)
    if name in EXACT:
        assert [figure.what for figure in figures if figure.met is False] == []


def test_of_callers_at_once_one_wins(reaper: Reaper) -> None:
    """What the row of the callers counts is no matter of time."""
    one, many, _ = ROWS["contention"](Setting(rounds=2, size=0.005, reaper=reaper))
    assert (one.value, one.met) == ("2 of 2", True)
    assert (many.value, many.met) == ("500", True)


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    found = ratio("a", [2.0, 9.0, 3.0], [1.0, 1.0, 1.0], at_most=3.0)
    assert (found.value, found.met, found.detail) == ("3.00 ×", True, "3 s against 1 s")
    assert not ratio("a", [2.0, 9.0, 3.0], [1.0, 1.0, 1.0], at_most=2.9).met
    assert ratio("a", [2.0], [1.0], at_least=2.0).met
    assert ratio("a", [2.0], [1.0]).met is None


def test_the_page_has_every_row_and_says_what_is_missed() -> None:
    good = Figure("fast", "1 ms", goal="2 ms", met=True)
    text = page({name: Section([good, replace(good, what=name, met=False)], 7, 0.5) for name in ROWS})
    assert TITLES.keys() == ROWS.keys()
    assert "Not measured" not in text
    assert "Not measured: A key (`make bench ARGS=keys`)" in page(
        {name: Section([good], 7, 0.5) for name in ROWS if name != "keys"}
    )
    assert f"{len(ROWS)} of {2 * len(ROWS)} goals are reached" in text
    assert all(f"| {name} | 1 ms |  | 2 ms | **no** |  |" in text for name in ROWS)
    assert table([good]).splitlines()[-1].split() == [
        "|",
        "fast",
        "|",
        "1",
        "ms",
        "|",
        "|",
        "2",
        "ms",
        "|",
        "yes",
        "|",
        "|",
    ]
