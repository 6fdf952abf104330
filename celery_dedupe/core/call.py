"""One call of a task, as the rest of the core sees it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """A task call at publish or at start, free of Celery's payload shapes.

    Attributes:
        task: the task's name.
        task_id: the message's id; a retry and a redelivery keep it.
        args: positional arguments, without the ``self`` of a bound task.
        kwargs: keyword arguments.
        signature: the signature that a caller sees (no ``self``), ``None`` where the task is unknown here.
        eta_in: seconds until the call may start.
        expires_in: seconds until the message expires, ``None`` if it never does.
        retries: how often the call was retried before.
        workflow: it carries a chain, chord, callback or errback, or is a member of a group.
    """

    task: str
    task_id: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    signature: inspect.Signature | None
    eta_in: float = 0.0
    expires_in: float | None = None
    retries: int = 0
    workflow: bool = False
