"""Case 24: an error that cannot be unpickled kills a worker. Every one of ours can, and says what it said."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest
from celery.utils.serialization import get_pickleable_exception, get_pickled_exception

from celery_dedupe import (
    ConfigurationError,
    DedupeError,
    DeliveryLimitExceeded,
    DuplicateTask,
    LeaseLost,
    RateExceeded,
    StoreUnavailable,
    UnkeyableArguments,
    errors,
)
from celery_dedupe.store.protocol import NotARecord

DUPLICATE = DuplicateTask("t", "holder", "running", 12.5, "dedupe:t:abc")
EXAMPLES = [
    DedupeError("what was wrong"),
    ConfigurationError("dedupe_mode 'of' is no mode"),
    UnkeyableArguments("argument 'x' of 't' has no canonical form"),
    StoreUnavailable("the claim store does not answer"),
    LeaseLost("t[id] no longer holds k"),
    NotARecord("dedupe:t:abc"),
    DeliveryLimitExceeded("t", "id", 4, 3),
    RateExceeded("t", "dedupe:t:abc", 3.25),
    DUPLICATE,
    DuplicateTask("t", "holder", "done", None, "dedupe:t:abc"),
]
BY_TYPE = pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)


def test_no_error_is_left_out():
    tree = {kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)}
    assert tree <= {type(error) for error in EXAMPLES}
    assert all(issubclass(kind, DedupeError) for kind in tree)


def same(one: Any, other: Any) -> bool:
    return (type(one), str(one), one.args, vars(one)) == (type(other), str(other), other.args, vars(other))


@BY_TYPE
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_survives_pickling_with_all_it_says(error, protocol):
    assert same(pickle.loads(pickle.dumps(error, protocol)), error)
    assert same(copy.deepcopy(error), error)


@BY_TYPE
def test_a_pool_sends_the_error_itself_and_no_stand_in(error):
    """Celery wraps an error that does not survive pickling in one of its own."""
    sent = get_pickled_exception(pickle.loads(pickle.dumps(get_pickleable_exception(error))))
    assert same(sent, error)


@BY_TYPE
def test_a_result_backend_gives_the_error_back(local_app, error):
    a = local_app()

    def body(task: Any, value: Any) -> None:
        raise error

    result = a.task(body).delay(1)
    a.run_next()
    with pytest.raises(type(error)) as caught:
        result.get(timeout=5)
    assert str(caught.value) == str(error)


def test_a_duplicate_says_who_holds_the_lock_and_for_how_long():
    assert str(DUPLICATE) == (
        "t is a duplicate of holder, which is running and holds dedupe:t:abc "
        "for at most 12.5 s unless renewed"
    )
    assert str(EXAMPLES[-1]).endswith("which is done and holds dedupe:t:abc for ever")
    assert (DUPLICATE.task, DUPLICATE.task_id, DUPLICATE.state) == ("t", "holder", "running")
    assert (DUPLICATE.expires_in, DUPLICATE.key) == (12.5, "dedupe:t:abc")


def test_a_poison_message_is_told_with_its_count_and_a_mend():
    error = DeliveryLimitExceeded("t", "id", 4, 3)
    assert str(error) == (
        "t[id] has come 4 times, since no run of it came to an end, and max_deliveries is 3: "
        "find what kills its process (memory, a crash in C code), then call the task again"
    )
    assert (error.task, error.task_id, error.deliveries, error.limit) == ("t", "id", 4, 3)


def test_a_run_over_its_rate_is_told_when_a_start_is_free():
    error = RateExceeded("t", "dedupe:t:abc", 3.25)
    assert str(error) == "t is over the rate of dedupe:t:abc, which has a start free in 3.2 s"
    assert (error.task, error.key, error.available_in) == ("t", "dedupe:t:abc", 3.25)


def test_unkeyable_arguments_are_a_type_error_too():
    assert issubclass(UnkeyableArguments, TypeError)
