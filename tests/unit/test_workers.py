"""What is said of workers that were asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_dedupe.core.workers import Worker, clock, compared, skew

MINE = Worker(
    node="this program", version="1", mode="enforce", digest="aaa", prefix="dedupe", store="redis://a/0"
)
W1, W2 = replace(MINE, node="w1"), replace(MINE, node="w2")


def said(*workers, bare=(), mine=MINE):
    return [(finding.kind, finding.text) for finding in compared(mine, workers, bare)]


def test_where_all_agree_nothing_is_said():
    assert said(W1, W2) == []
    assert said() == []


def test_a_worker_without_the_extension():
    first, second = said(W1, bare=["w3", "w2"])
    assert first == (
        "error",
        "w2 does not have celery-dedupe: it runs these tasks without their locks and gives back no claims. "
        "Let its app call Dedupe(app).init_app()",
    )
    assert second[1].startswith("w3 ")


@pytest.mark.parametrize(
    ("field", "word"), [("digest", "rules"), ("mode", "mode"), ("prefix", "prefix"), ("store", "store")]
)
def test_workers_that_differ(field, word):
    (found,) = said(W1, replace(W2, **{field: "other"}), replace(W1, node="w0"))
    each = f"{getattr(W1, field)} at w0, w1; other at w2"
    assert found == ("error", f"workers differ in their {word}: {each}. Deploy the same to all")


@pytest.mark.parametrize(("field", "word"), [("digest", "rules"), ("prefix", "prefix"), ("store", "store")])
def test_a_program_that_differs_from_all_workers(field, word):
    mine = replace(MINE, **{field: "other"})
    assert said(W1, W2, mine=mine) == [
        ("warning", f"this program's {word} is other, and that of the workers {getattr(W1, field)}")
    ]


def test_workers_that_are_off_give_back_nothing():
    off = [replace(one, mode="off") for one in (W1, W2)]
    kinds = [kind for kind, _ in said(*off)]
    assert kinds == ["warning", "error"]
    assert "no worker that answers gives back claims" in said(*off)[1][1]
    assert said(*off, mine=replace(MINE, mode="off")) == []


def test_a_worker_that_does_not_reach_the_store():
    assert said(W1, replace(W2, breaker="open")) == [
        ("error", "w2 does not reach the claim store: see its log")
    ]


@pytest.mark.parametrize(
    ("clock_", "asked", "answered", "ahead"),
    [(100, 99, 101, 0), (99, 99, 101, 0), (98, 99, 101, -1), (103, 99, 101, 2)],
)
def test_a_clock_is_ahead_of_the_answer_or_behind_the_question(clock_, asked, answered, ahead):
    assert skew(clock_, asked, answered) == ahead


def test_a_clock_that_is_wrong():
    assert said(replace(W1, skew=5.0), replace(W2, skew=-5.0)) == []
    ahead, behind = said(replace(W1, skew=3725.5), replace(W2, skew=-6.0))
    assert ahead[0] == "warning"
    assert ahead[1].startswith("the clock of w1 is 1h 2m ahead of this machine's: locks go by the store's")
    assert behind[1].startswith("the clock of w2 is 6s behind this machine's")
    assert clock("it", 0.0) == []
