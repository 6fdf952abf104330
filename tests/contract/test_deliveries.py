"""What every store promises of a message that is delivered again and again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_dedupe.core.asks import Attempt, BeginAsk, Begun, Exceeded, FinishAsk, Over, Redelivered, Refused
from celery_dedupe.store.protocol import Store
from tests.contract.asks import MINUTE, SHORT, begun, near, queued_ids, running_tokens, slot
from tests.contract.conftest import Keys
from tests.harness.waiting import wait_until


def counting(key: str, deliveries: int = 2, counted: int = MINUTE, **fields: int) -> BeginAsk:
    return replace(slot(key, **fields), deliveries=deliveries, counted=counted)


def cut_off(store: Store, attempt: Attempt, *asks: BeginAsk) -> None:
    """A run that begins and is never heard of again, until its lease has ended."""
    begun(store, attempt, *(replace(ask, lease=SHORT) for ask in asks))
    wait_until(lambda: not any(store.read(ask.key).running for ask in asks), 5)


def counts(store: Store, key: str) -> list[tuple[str, int]]:
    return [(part.task_id, part.count) for part in store.read(key).delivered]


M1 = Attempt("t1", "tok", "n1")


def test_so_many_starts_and_no_more(store: Store, keys: Keys) -> None:
    for _ in range(2):
        cut_off(store, M1, counting(keys()))
    assert store.begin([counting(keys())], M1) == Exceeded(0, 3)
    assert store.begin([counting(keys())], replace(M1, token="another")) == Exceeded(0, 3)
    assert running_tokens(store.read(keys())) == []
    begun(store, Attempt("t2", "tok2", "n2"), counting(keys()))


def test_the_count_says_when_it_ends(store: Store, keys: Keys) -> None:
    cut_off(store, M1, counting(keys(), counted=7000))
    (part,) = store.read(keys()).delivered
    assert (part.task_id, part.nonce, part.count) == ("t1", "n1", 1)
    assert near(part.expires_at - store.clock(), 7000)


def test_it_is_forgotten_after_its_time(store: Store, keys: Keys) -> None:
    for _ in range(4):
        cut_off(store, M1, counting(keys(), counted=SHORT))
        wait_until(lambda: not store.read(keys()), 5)


def test_another_message_of_the_task_is_counted_anew(store: Store, keys: Keys) -> None:
    for nonce in ("n1", "n1", "n2", "n2"):
        cut_off(store, replace(M1, nonce=nonce), counting(keys()))
    assert counts(store, keys()) == [("t1", 2)]


def test_a_repeated_begin_counts_once(store: Store, keys: Keys) -> None:
    for _ in range(5):
        begun(store, M1, counting(keys()), counting(keys()))
    assert counts(store, keys()) == [("t1", 1)]


@pytest.mark.parametrize("outcome", ["free", "done", "queued", "withdrawn"])
def test_an_end_forgets_it(store: Store, keys: Keys, outcome: str) -> None:
    begun(store, M1, counting(keys()))
    store.finish([FinishAsk(keys(), "tok", outcome, MINUTE)], M1, well=True)
    assert counts(store, keys()) == []


def test_an_end_of_a_message_that_comes_again_keeps_it(store: Store, keys: Keys) -> None:
    for _ in range(2):
        begun(store, M1, counting(keys()))
        store.finish([FinishAsk(keys(), "tok", "queued", MINUTE, "keep")], M1, well=False)
    assert store.begin([counting(keys())], M1) == Exceeded(0, 3)
    assert queued_ids(store.read(keys())) == ["t1"], "what the task holds is the caller's to give back"


def test_an_end_without_a_slot_forgets_its_own(store: Store, keys: Keys) -> None:
    for task_id in ("t1", "t2"):
        cut_off(store, Attempt(task_id, task_id, "n"), counting(keys()))
    store.finish([FinishAsk(keys(), "", "withdrawn")], M1, well=True)
    assert counts(store, keys()) == [("t2", 1)]


def test_a_late_end_leaves_the_count_of_the_next_run(store: Store, keys: Keys) -> None:
    cut_off(store, M1, counting(keys()))
    begun(store, replace(M1, token="next"), counting(keys()))
    store.finish([FinishAsk(keys(), "tok", "free")], M1, well=False)
    assert counts(store, keys()) == [("t1", 2)]


def test_a_start_that_was_none_can_be_undone_once(store: Store, keys: Keys) -> None:
    cut_off(store, M1, counting(keys()))
    begun(store, M1, counting(keys()))
    for _ in range(2):
        store.finish([FinishAsk(keys(), "tok", "free", deliveries="undo")], M1, well=False)
        assert counts(store, keys()) == [("t1", 1)]
    begun(store, M1, counting(keys()))


def test_nothing_counts_for_a_task_whose_message_is_gone(store: Store, keys: Keys) -> None:
    for task_id in ("t1", "t2"):
        cut_off(store, Attempt(task_id, task_id, "n"), counting(keys()))
    store.withdraw([keys()], "t1")
    assert counts(store, keys()) == [("t2", 1)]


def test_what_may_not_start_now_is_not_counted(store: Store, keys: Keys) -> None:
    cut_off(store, M1, counting(keys()))
    cut_off(store, M1, counting(keys()))
    begun(store, Attempt("t2", "tok2"), counting(keys()))
    reply = store.begin([counting(keys())], M1)
    assert isinstance(reply, Refused), "who is in the way comes first"
    assert counts(store, keys()) == [("t1", 2), ("t2", 1)]


def test_the_last_copy_may_still_run(store: Store, keys: Keys) -> None:
    cut_off(store, M1, counting(keys()))
    begun(store, M1, counting(keys()))
    copy = replace(M1, token="copy")
    assert isinstance(store.begin([counting(keys(), mark=MINUTE)], copy), Redelivered)
    store.finish([FinishAsk(keys(), "tok", "free")], M1, well=True)
    assert store.begin([counting(keys())], copy) == Over()


def test_of_several_locks_each_counts_and_none_is_taken(store: Store, keys: Keys) -> None:
    asks = [counting(keys("a"), 9), slot(keys("b")), counting(keys("c"), 1)]
    cut_off(store, M1, *asks)
    for _ in range(3):
        assert store.begin(asks, M1) == Exceeded(2, 2)
        assert [running_tokens(store.read(keys(name))) for name in "abc"] == [[], [], []]
        assert counts(store, keys("a")) == [("t1", 1)]


def test_a_start_that_a_later_lock_refuses_was_none(store: Store, keys: Keys) -> None:
    begun(store, Attempt("t2", "tok2"), slot(keys("b")))
    for _ in range(3):
        asks = [counting(keys("a"), hold=MINUTE), slot(keys("b"), hold=MINUTE)]
        assert isinstance(store.begin(asks, M1), Refused)
        assert counts(store, keys("a")) == []
    store.finish([FinishAsk(keys("b"), "tok2", "free")], Attempt("t2", "tok2"), well=True)
    assert isinstance(store.begin([counting(keys("a")), slot(keys("b"))], M1), Begun)
