"""Long lists in pieces, so that one call does not hold up a server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of up to ``size`` of the items, in order."""
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some
