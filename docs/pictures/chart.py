"""Draws the way to a lock by questions. Each question is about a trait, so the answers are the code's."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from svg import BLUE, FAINT, GREEN, GREY, document, line, rect, text

from celery_dedupe.core.locks import LOCKS, Lock


class Question(NamedTuple):
    """A question of which one answer leads to one lock; ``leads`` is the trait that lock has."""

    words: tuple[str, ...]
    answer: str
    leads: Callable[[Lock], bool]


QUESTIONS = (
    Question(("When the work is done, may the same", "call do it again?"), "no", lambda lock: lock.remembers),
    Question(
        ("Is it to be sent once in a period,", "however long it runs?"), "yes", lambda lock: lock.periodic
    ),
    Question(("May two runs of it overlap?",), "yes", lambda lock: not lock.runs),
    Question(
        ("Is it enough that runs do not overlap,", "and a missed one does not matter?"),
        "yes",
        lambda lock: not lock.publish_blocked_by,
    ),
    Question(
        ("Must a call that comes during a run", "be followed by another run?"),
        "yes",
        lambda lock: "running" not in lock.publish_blocked_by,
    ),
)
BOX, HIGH, GAP = 310, 54, 34


def ways() -> list[tuple[str, ...]]:
    """Return for each question the locks to which its answer leads, and at last those that are left."""
    left = list(LOCKS.values())
    found = []
    for question in QUESTIONS:
        found.append(tuple(lock.name for lock in left if question.leads(lock)))
        left = [lock for lock in left if not question.leads(lock)]
    return [*found, tuple(lock.name for lock in left)]


def chart() -> str:
    """Return the chart as SVG."""
    found = ways()
    assert all(len(names) == 1 for names in found), f"an answer leads to one lock each: {found}"
    drawn: list[str] = []
    for number, (question, names) in enumerate(zip(QUESTIONS, found, strict=False)):
        top = 16 + number * (HIGH + GAP)
        drawn += _question(question, top)
        drawn += _answer(question.answer, names[0], top)
        other = "no" if question.answer == "yes" else "yes"
        drawn += [
            line(16 + BOX / 2, top + HIGH, 16 + BOX / 2, top + HIGH + GAP, GREY),
            text(16 + BOX / 2 + 8, top + HIGH + 22, other),
        ]
    top = 16 + len(QUESTIONS) * (HIGH + GAP)
    drawn += [rect(16 + BOX / 2 - 80, top, 160, 36, GREEN), _name(16 + BOX / 2, top + 23, found[-1][0])]
    title = "Which lock: " + "; ".join(
        f"{' '.join(question.words)} {question.answer}: {names[0]}"
        for question, names in zip(QUESTIONS, found, strict=False)
    )
    return document(f"{title}; else {found[-1][0]}", BOX + 280, top + 52, drawn)


def _question(question: Question, top: float) -> list[str]:
    middle = top + HIGH / 2 + 5 - 9 * (len(question.words) - 1)
    words = [
        text(16 + BOX / 2, middle + 18 * number, words, anchor="middle")
        for number, words in enumerate(question.words)
    ]
    return [rect(16, top, BOX, HIGH, BLUE, edge=FAINT), *words]


def _answer(answer: str, name: str, top: float) -> list[str]:
    middle = top + HIGH / 2
    right = 16 + BOX
    return [
        line(right, middle, right + 60, middle, GREY),
        text(right + 30, middle - 8, answer, anchor="middle"),
        rect(right + 60, middle - 18, 160, 36, GREEN),
        _name(right + 140, middle + 5, name),
    ]


def _name(x: float, y: float, name: str) -> str:
    return text(x, y, name, anchor="middle", colour="#fff", bold=True)
