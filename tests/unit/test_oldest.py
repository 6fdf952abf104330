"""What is sorted with bounded memory is sorted."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from celery_dedupe.cli import oldest
from celery_dedupe.cli.oldest import oldest_first


def items(count: int) -> list[tuple[tuple[int, str], str]]:
    return [((age % 7, str(age)), f"item {age}") for age in range(count)]


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 20, 25, 1234])
@pytest.mark.parametrize("at_once", [10, 600])
def test_everything_comes_out_in_order(count: int, at_once: int) -> None:
    shuffled = items(count)
    random.Random(count).shuffle(shuffled)
    assert list(oldest_first(shuffled, at_once)) == sorted(items(count))


def test_what_comes_twice_goes_out_once() -> None:
    twice = [*items(25), *items(25), *items(3)]
    assert list(oldest_first(twice, 10)) == sorted(items(25))


def test_all_is_read_before_the_first_goes_out() -> None:
    read: list[object] = []

    def reading() -> Iterator[tuple[tuple[int, str], str]]:
        for item in items(25):
            read.append(item)
            yield item

    found = oldest_first(reading(), 10)
    assert next(found) == ((0, "0"), "item 0")
    assert len(read) == 25


class Counted:
    """Knows how many of its kind there are."""

    alive = 0
    most = 0

    def __init__(self) -> None:
        Counted.alive += 1
        Counted.most = max(Counted.most, Counted.alive)

    def __del__(self) -> None:
        Counted.alive -= 1

    def __reduce__(self) -> tuple[type[Counted], tuple[()]]:
        return Counted, ()


def test_no_more_than_its_share_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run while it is sorted, then of each run a batch."""
    monkeypatch.setattr(oldest, "BATCH", 10)
    many = ((number * 7919 % 2000, Counted()) for number in range(2000))
    assert [order for order, _ in oldest_first(many, 200)] == list(range(2000))
    assert Counted.most < 500
    assert Counted.alive == 0


def test_files_are_closed_when_nobody_reads_on() -> None:
    found = oldest_first(items(25), 10)
    next(found)
    found.close()  # type: ignore[attr-defined]  # a ResourceWarning would fail this test
