"""Rates: whatever comes and goes, no window has too many starts, and nobody shares a slot."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from celery_dedupe.core import pacing
from celery_dedupe.core.asks import RateAsk
from celery_dedupe.core.parts import Pace

START = 1_700_000_000_000_000
NEVER = 10**15
PATIENCES = st.sampled_from((0, 50_000, 250_000))

rates = st.builds(
    lambda starts, window, patience: RateAsk(starts, window, 0, True, patience, NEVER),
    st.integers(1, 6),
    st.sampled_from((1_000, 100_001, 1_000_000, 60_000_000)),
    PATIENCES,
)
moments = st.integers(0, 8_000_000) | st.sampled_from((0, 0, 1, 1_000_000))


@dataclass
class Simulation:
    """Runs under one rate, of which each that is promised a slot comes back so late after it."""

    ask: RateAsk
    pace: Pace | None = None

    def __post_init__(self) -> None:
        self.starts: list[int] = []
        self.waits: list[int] = []

    def come(self, now: int, slot: int = 0) -> int:
        """The slot that is promised; 0 if the run starts."""
        ask = replace(self.ask, slot=slot)
        answer = pacing.answer(self.pace, ask, now)
        self.pace = answer.pace
        if answer.free:
            self.pace = pacing.started(answer.pace, ask, answer.at)
            self.starts.append(answer.at)
            assert now <= answer.at <= now + ask.patience
            return 0
        assert answer.at > now + ask.patience
        return answer.at

    def leave(self, slot: int, now: int) -> None:
        assert self.pace
        self.pace = pacing.given_back(self.pace, slot, now)

    def play(self, arrivals: list[int], lateness: list[int]) -> None:
        """Lets all come, and come back until they have started: who has a slot before who comes just then."""
        events = sorted((START + at, True, 0, place) for place, at in enumerate(arrivals))
        self.waits = [0] * len(arrivals)
        while events:
            now, _, slot, place = events.pop(0)
            promised = self.come(now, slot)
            if promised:
                self.waits[place] += 1
                late = lateness[(place + self.waits[place]) % len(lateness)]
                events = sorted([*events, (promised + late, False, promised, place)])

    def no_window_has_too_many(self) -> bool:
        starts, most = sorted(self.starts), self.ask.starts
        return all(
            later - earlier >= self.ask.window for earlier, later in zip(starts, starts[most:], strict=False)
        )


@given(rates, st.lists(moments, min_size=1, max_size=40), st.lists(st.integers(0, 3_000_000), min_size=1))
def test_no_window_has_more_starts_than_the_rate_allows_and_all_start_at_last(ask, arrivals, lateness):
    run = Simulation(ask)
    run.play(arrivals, lateness)
    assert run.no_window_has_too_many()
    assert len(run.starts) == len(arrivals)


@given(rates, st.lists(moments, min_size=1, max_size=40))
def test_who_comes_on_time_comes_back_once(ask, arrivals):
    run = Simulation(ask)
    run.play(arrivals, [0])
    assert run.no_window_has_too_many()
    assert max(run.waits) <= 1


@given(rates, st.integers(1, 60))
def test_a_crowd_starts_as_fast_as_the_rate_allows(ask, crowd):
    run = Simulation(ask)
    run.play([0] * crowd, [0])
    gap = -(-ask.window // ask.starts)
    late = START + ask.window + (crowd - ask.starts - 1) * gap if crowd > ask.starts else START
    assert max(run.starts) <= late
    assert max(run.starts) == late or ask.patience


@given(rates, st.integers(1, 30), st.sets(st.integers(0, 29)), st.randoms())
def test_nobody_shares_a_slot_and_those_given_back_are_used_again(ask, crowd, leaving, random):
    ask = replace(ask, patience=0)
    run = Simulation(ask)
    for _ in range(ask.starts):
        run.come(START)
    slots = [run.come(START) for _ in range(crowd)]
    assert len(set(slots)) == crowd
    gone = [slots[place] for place in leaving if place < crowd]
    random.shuffle(gone)
    for slot in [*gone, *gone]:  # Twice: a revocation may be told more than once.
        run.leave(slot, START)
    assert sorted(run.come(START) for _ in gone) == sorted(gone)
    assert run.come(START) > max(slots), "whoever comes after them waits behind all"


@given(rates, st.integers(2, 30))
def test_when_all_who_wait_have_left_nobody_waits_for_them(ask, crowd):
    run = Simulation(replace(ask, patience=0))
    for _ in range(ask.starts):
        run.come(START)
    slots = [run.come(START) for _ in range(crowd)]
    for slot in slots:
        run.leave(slot, START)
    assert run.come(START + ask.window) == 0


@given(rates, st.integers(1, 30), st.integers(1, 5))
def test_promises_of_which_nothing_is_heard_are_void(ask, crowd, silence):
    ask = replace(ask, silence=2 * ask.window + silence, patience=0)
    run = Simulation(ask)
    for _ in range(ask.starts):
        run.come(START)
    slots = [run.come(START) for _ in range(crowd)]
    still = START + ask.silence
    if max(slots) > still:
        assert run.come(still) > still, "not yet"
    assert run.come(still + 1) == 0


@given(rates, st.integers(2, 30), st.integers(2, 20))
def test_a_rate_that_is_raised_is_for_those_who_wait_too(ask, crowd, times):
    """They come back earlier than their slots (see ``LONGEST_STEP``) and are told nearer ones."""
    ask = replace(ask, patience=0)
    before, run = Simulation(ask), Simulation(replace(ask, starts=ask.starts * times))
    for _ in range(ask.starts):
        before.come(START)
    slots = [before.come(START) for _ in range(crowd)]
    run.pace = before.pace
    told = [run.come(START, slot) or START for slot in slots]
    gap = -(-ask.window // run.ask.starts)
    assert max(told) <= START + ask.window + crowd * gap
    assert max(told) <= max(slots)


@given(rates, st.integers(1, 30))
def test_a_promise_that_is_void_binds_nobody(ask, crowd):
    """Nothing was heard of the others, or the store has lost all it knew."""
    ask = replace(ask, silence=2 * ask.window, patience=0)
    run = Simulation(ask)
    for _ in range(ask.starts):
        run.come(START)
    slots = [run.come(START) for _ in range(crowd)]
    now = START + ask.silence + 1
    if max(slots) > now:
        assert run.come(now, max(slots)) == 0
    assert Simulation(ask).come(START, START + 86_400_000_000) == 0


@given(rates, st.integers(0, pacing.AHEAD))
def test_who_only_observes_forgets_no_start_that_is_booked_ahead(ask, back):
    """Nor does a clock that is set by a little."""
    run = Simulation(replace(ask, patience=250_000))
    for _ in range(ask.starts + 1):
        run.come(START)
    observed = replace(ask, patience=0, reserves=False)
    answer = pacing.answer(run.pace, observed, max(run.starts) - back)
    assert answer.pace.starts == run.pace.starts


@given(rates, st.integers(1, 20), st.integers(pacing.AHEAD + 1, 10**12))
def test_a_clock_that_was_set_back_keeps_nobody_from_starting(ask, crowd, back):
    run = Simulation(ask)
    run.play([0] * crowd, [0])
    run.pace = replace(run.pace, tail=run.starts[-1] + 5)
    assert run.come(START - back) == 0


@given(rates, st.integers(1, 12))
def test_what_may_not_wait_is_told_when_a_start_is_free_and_takes_nothing(ask, crowd):
    run = Simulation(replace(ask, reserves=False, patience=0))
    told = [run.come(START) for _ in range(crowd)]
    assert told == [0] * min(crowd, ask.starts) + [START + ask.window] * (crowd - ask.starts)
    assert run.come(START + ask.window) == 0


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 60_000))))
def test_each_of_several_rates_on_one_key_is_kept(arrivals):
    """A function may give a lower rate for one call than for another."""
    now, pace, starts, window = START, None, [], 200_000
    for most, later in arrivals:
        now += later
        ask = RateAsk(most, window, 0, False, 0, NEVER)
        answer = pacing.answer(pace, ask, now)
        if answer.free:
            pace = pacing.started(answer.pace, ask, answer.at)
            starts.append(answer.at)
            assert sum(answer.at - window < at for at in starts) <= most
