"""``only_after``: true once a period, and no obstacle where it cannot tell."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery, _state

from celery_dedupe import ConfigurationError, StoreUnavailable, only_after
from celery_dedupe.signals import RanUnprotected


@pytest.fixture(autouse=True)
def current_app() -> Iterator[None]:
    before = _state._tls.current_app
    yield
    _state._tls.current_app = before


@pytest.fixture
def a(local_app: Any) -> Any:
    a = local_app()
    a.app.set_current()
    return a


def test_it_is_true_once_a_period(a: Any) -> None:
    answers = []
    for _ in range(4):
        answers.append([only_after("x", period) for period in ("1h", 3600, timedelta(hours=1))])
        a.clock.turn(1799)
        answers.append([only_after("x", "1h")])
        a.clock.turn(1802)
    assert answers == [[True, False, False], [False]] * 4


def test_each_key_has_a_period_of_its_own(a: Any) -> None:
    keys = ["x", "y", "x y", "x/y", "ä"]
    assert [only_after(key, "1h") for key in [*keys, *keys]] == [True] * 5 + [False] * 5
    assert [key for key, _ in a.store.scan("dedupe:only_after:*")]


def test_a_task_asks_the_store_of_its_own_app_and_its_retry_asks_again(a: Any, local_app: Any) -> None:
    b = local_app()
    answers: list[bool] = []

    def body(task: Any, value: Any) -> None:
        answers.append(only_after("x", "1h"))
        if task.request.retries == 0:
            raise task.retry(countdown=0)

    b.task(body).delay(1)
    b.run_next()
    b.run_next()
    assert answers == [True, False]
    assert a.store.calls == []
    assert only_after("x", "1h"), "outside of tasks it is the current app's"


def test_a_lock_of_the_same_name_is_another(local_app: Any) -> None:
    a = local_app({"t": {"lock": "until_finished", "scope": "only_after", "key": []}})
    a.app.set_current()
    a.task().delay(1)
    assert only_after("x", "1h")


@pytest.mark.parametrize("mode", ["off", "observe"])
def test_it_is_always_true_in_mode(local_app: Any, mode: str) -> None:
    a = local_app(mode=mode)
    a.app.set_current()
    assert [only_after("x", "1h") for _ in range(3)] == [True] * 3
    a.store.down = True
    assert only_after("x", "1h", on_store_error="refuse")


def test_without_the_store_it_is_true_and_told_or_an_error(a: Any) -> None:
    a.store.down = True
    answers: list[bool] = []
    a.task(lambda task, value: answers.append(only_after("x", "1h"))).apply_async((1,), task_id="id")
    a.run_next()
    assert (answers, only_after("x", "1h")) == ([True], True)
    (event,) = a.told(RanUnprotected)
    assert (event.task, event.task_id, event.stage) == ("t", "id", "start")
    assert event.reason.startswith("only_after 'x': the store is away")
    with pytest.raises(StoreUnavailable):
        only_after("x", "1h", on_store_error="refuse")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (("", "1h"), "only_after: the key is empty"),
        (("x", "1 hour"), "only_after: period '1 hour' is not a duration"),
        (("x", 0), "only_after: period 0 must be a millisecond or more"),
        (("x", 5, "maybe"), "only_after: on_store_error 'maybe' is neither 'allow' nor 'refuse'"),
    ],
)
def test_what_it_cannot_be_asked(asked: Any, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}"):
        only_after(asked[0], asked[1], **({"on_store_error": asked[2]} if len(asked) > 2 else {}))


def test_an_app_without_the_extension(local_app: Any) -> None:
    bare = Celery("bare", set_as_current=True)
    with pytest.raises(
        ConfigurationError, match=r"^only_after: <Celery bare .* has no Dedupe; call Dedupe\(app\)"
    ):
        only_after("x", "1h")
    bare.close()
