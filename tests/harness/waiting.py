"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
INTERVAL = 0.01


def wait_until(
    condition: Callable[[], T],
    timeout: float = 30.0,
    message: str | Callable[[], str] = "",
    interval: float = INTERVAL,
) -> T:
    """Returns the condition's value as soon as it is true.

    Args:
        condition: asked every ``interval`` seconds; what it raises goes through.
        timeout: seconds after which ``TimeoutError`` is raised.
        message: what was waited for, or a function that says what there is instead; read on failure only.
    """
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            text = message() if callable(message) else message
            raise TimeoutError(f"not within {timeout} s: {text or condition}")
        time.sleep(interval)
    return value


def remains_true(
    condition: Callable[[], object],
    seconds: float,
    message: str | Callable[[], str] = "",
    interval: float = INTERVAL,
) -> None:
    """Asserts that the condition is true now and at every look for so many seconds."""
    started = time.monotonic()
    while (passed := time.monotonic() - started) < seconds:
        if not condition():
            text = message() if callable(message) else message
            raise AssertionError(f"true for {passed:.2f} s of {seconds} s only: {text or condition}")
        time.sleep(interval)
