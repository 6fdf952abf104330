"""What a row finds: numbers with their spread, beside the number that is to be reached."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tests.harness.reaper import Reaper
from tests.harness.servers import ValkeyServer


@dataclass(frozen=True)
class Figure:
    """One number.

    Attributes:
        what: what was measured, and against what.
        value: the number with its unit.
        spread: the middle half of the rounds, or how many rounds agreed.
        goal: what it is to reach; empty where it is there for comparison only.
        met: whether it does; ``None`` without a goal.
        detail: what else a reader wants: the times behind a ratio.
    """

    what: str
    value: str
    spread: str = ""
    goal: str = ""
    met: bool | None = None
    detail: str = ""


@dataclass(frozen=True)
class Setting:
    """What a row needs to run.

    Attributes:
        rounds: how many rounds each comparison has; the numbers are their medians.
        size: 1.0 for the real thing; a fraction of it for a quick look.
    """

    rounds: int
    size: float
    reaper: Reaper

    def of(self, number: int) -> int:
        """So many, or the fraction of it."""
        return max(int(number * self.size), 1)

    @contextmanager
    def server(self) -> Iterator[ValkeyServer]:
        """An embedded Valkey of the row's own."""
        server = ValkeyServer(self.reaper)
        server.start()
        try:
            yield server
        finally:
            server.close()


Row = Callable[[Setting], list[Figure]]


def ratio(
    what: str,
    ours: Sequence[float],
    base: Sequence[float],
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    unit: Callable[[float], str] | None = None,
) -> Figure:
    """``ours`` against ``base``, round by round."""
    ratios = [one / other for one, other in zip(ours, base, strict=True)]
    value = statistics.median(ratios)
    met, goal = None, ""
    if at_most is not None:
        met, goal = value <= at_most, f"at most {at_most} ×"
    if at_least is not None:
        met, goal = value >= at_least, f"at least {at_least} ×"
    shown = unit or seconds
    detail = f"{shown(statistics.median(ours))} against {shown(statistics.median(base))}"
    return Figure(what, f"{value:.2f} ×", spread(ratios), goal, met, detail)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The middle half of the values."""
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return f"{low:.{digits}f} to {high:.{digits}f}"


def seconds(value: float) -> str:
    """A time in the unit that suits it."""
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"
