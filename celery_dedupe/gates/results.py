"""What the caller of a dropped publish gets: a result with the id of the task that does the work."""

from __future__ import annotations

from typing import Any

from celery_dedupe.core.verdicts import Duplicate

DUPLICATE = "dedupe_duplicate"  # the attribute of a result that tells of the dropped publish


def duplicate_of(result: object) -> Duplicate | None:
    """Why the publish that returned ``result`` was dropped; ``None`` if it was not.

    ``result`` is what ``delay``, ``apply_async`` or ``send_task`` returned: with ``on_duplicate="existing"``
    a dropped publish returns the incumbent's result, which this tells from a result of its own.
    """
    found: Duplicate | None = getattr(result, DUPLICATE, None)
    return found


class SecondResults:
    """Makes results of ids that have a first result somewhere.

    A result that is garbage has the backend forget its id, and before Celery 5.7 whoever waits for the first
    one is left waiting. A second one does not. Waited for, it is kept by the backend until it is ready.
    """

    def __init__(self) -> None:
        self._kinds: dict[type, type] = {}

    def mark(self, result: Any, found: Duplicate) -> Any:
        """Return ``result`` as a second one, of which ``duplicate_of`` tells ``found``."""
        kind = type(result)
        if kind not in self._kinds:
            names = {"__del__": lambda result: None, "__module__": kind.__module__}
            self._kinds[kind] = type(kind.__name__, (kind,), names)
        result.__class__ = self._kinds[kind]
        setattr(result, DUPLICATE, found)
        return result
