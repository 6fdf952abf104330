"""The error tree."""

from __future__ import annotations

import copy
import pickle

import pytest

from celery_dedupe import errors
from celery_dedupe.errors import (
    ConfigurationError,
    DedupeError,
    DeliveryLimitExceeded,
    DuplicateTask,
    LeaseLost,
    RateExceeded,
    StoreUnavailable,
    UnkeyableArguments,
)

EVERY = [
    DedupeError("text"),
    ConfigurationError("text"),
    UnkeyableArguments("text"),
    StoreUnavailable("text"),
    LeaseLost("text"),
    DeliveryLimitExceeded("proj.task", "an id", 4, 3),
    RateExceeded("proj.task", "dedupe:proj.task:0", 3.25),
    DuplicateTask("proj.task", "an id", "running", 12.5, "dedupe:proj.task:0"),
    DuplicateTask("proj.task", "an id", "done", None, "dedupe:proj.task:0"),
]


def test_every_error_is_shown_here() -> None:
    tree = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert tree == {type(error) for error in EVERY}
    assert all(issubclass(kind, DedupeError) for kind in tree)
    assert issubclass(UnkeyableArguments, TypeError)


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_survives_pickling(error: DedupeError, protocol: int) -> None:
    """Case 24: a pool or a result backend that cannot unpickle an error kills more than the task."""
    again = pickle.loads(pickle.dumps(error, protocol))
    assert (type(again), again.args, str(again), vars(again)) == (
        type(error),
        error.args,
        str(error),
        vars(error),
    )
    assert str(copy.copy(error)) == str(error)


def test_a_duplicate_says_who_holds_what_and_for_how_long() -> None:
    """Case 58."""
    error = DuplicateTask("proj.task", "an id", "running", 12.5, "dedupe:proj.task:0")
    assert (error.task, error.task_id, error.state) == ("proj.task", "an id", "running")
    assert (error.expires_in, error.key) == (12.5, "dedupe:proj.task:0")
    for word in ("proj.task", "an id", "running", "12.5 s", "dedupe:proj.task:0"):
        assert word in str(error)
    assert "for ever" in str(DuplicateTask("proj.task", "an id", "done", None, "k"))
