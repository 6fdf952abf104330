"""Draws a story as a timeline: one line for each call, and below them what the lock holds."""

from __future__ import annotations

from itertools import groupby

from story import END, IN_QUEUE, Lane, Story
from svg import FAINT, GREEN, GREY, INK, RED, YELLOW, cross, document, line, rect, text

SECOND = 10  # pixels
ROW = 30
LEFT = 150
TOP = 70
HELD = 24
WIDE = 6  # seconds in which there is room for a word
COLOURS = {"queued": YELLOW, "running": GREEN, "done": GREY}
WORDS = {"queued": INK, "running": "#fff", "done": "#fff"}


def timeline(lock: str, story: Story) -> str:
    """Return the picture of a story as SVG."""
    drawn = [text(LEFT - 24, 24, lock, anchor="end", bold=True), *_calls(story)]
    lanes = [lane for lane in story.lanes if not lane.dropped]
    for number, lane in enumerate(lanes):
        drawn += _lane(lane, TOP + number * ROW)
    below = TOP + len(lanes) * ROW + 4
    drawn += _held(story, below)
    return document(f"{lock}: {told(story)}", LEFT + END * SECOND + 12, below + 40, drawn)


def told(story: Story) -> str:
    """Return in words what becomes of each call."""
    return "; ".join(f"{lane.name} {_fate(lane)}" for lane in story.lanes)


def _fate(lane: Lane) -> str:
    if lane.dropped:
        return "is dropped at its publish"
    if lane.refused is not None:
        return "is refused at its start"
    waited = lane.started is not None and lane.started - lane.called > IN_QUEUE
    return "waits for its turn and runs" if waited else "runs"


def _x(second: float) -> float:
    return LEFT + second * SECOND


def _calls(story: Story) -> list[str]:
    drawn = []
    for lane in story.lanes:
        x, colour = _x(lane.called), RED if lane.dropped else INK
        drawn.append(text(x, 24, lane.name, anchor="middle", colour=colour, bold=not lane.dropped))
        drawn.append(line(x, 30, x, 38, colour))
        if lane.dropped:
            drawn.append(cross(x, 46, RED))
    return drawn


def _lane(lane: Lane, top: float) -> list[str]:
    start = lane.refused if lane.started is None else lane.started
    assert start is not None, "the story is long enough for every call to start"
    drawn = [
        text(LEFT - 12, top + 15, lane.name, anchor="end"),
        rect(_x(lane.called), top + 5, (start - lane.called) * SECOND, 10, FAINT),
    ]
    if lane.ended is None:
        return [*drawn, cross(_x(start) + 6, top + 10, RED)]
    drawn.append(rect(_x(start), top, (lane.ended - start) * SECOND, 20, GREEN))
    return [*drawn, text(_x((start + lane.ended) / 2), top + 15, "runs", anchor="middle", colour="#fff")]


def _held(story: Story, top: float) -> list[str]:
    drawn = [text(LEFT - 12, top + 20, "the lock", anchor="end"), line(LEFT, top, _x(END), top, FAINT)]
    second = 0
    for states, run in groupby(story.held):
        seconds = len(list(run))
        height = HELD / max(len(states), 1)
        for number, state in enumerate(sorted(states)):
            drawn.append(
                rect(_x(second), top + 4 + number * height, seconds * SECOND, height, COLOURS[state])
            )
        if len(states) == 1 and seconds >= WIDE:
            (state,) = states
            drawn.append(
                text(_x(second + seconds / 2), top + 20, state, anchor="middle", colour=WORDS[state])
            )
        second += seconds
    return drawn
