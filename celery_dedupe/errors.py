"""The error tree. Every error survives pickling, so a result backend or a process pool can carry it."""

from __future__ import annotations


class DedupeError(Exception):
    """Root of every error this package raises."""


class ConfigurationError(DedupeError):
    """A setting, rule or policy is wrong. The message names the setting, the value and the mend."""


class UnkeyableArguments(DedupeError, TypeError):
    """An argument has no canonical form, so no key can be made of the call. The message names it."""


class StoreUnavailable(DedupeError):
    """The claim store cannot be reached or cannot write, and the policy says ``on_store_error="refuse"``.

    Attributes:
        store: its name in ``dedupe_stores``.
    """

    store = "default"

    def __str__(self) -> str:
        text = super().__str__()
        return text if self.store == "default" else f"store {self.store!r}: {text}"


class LeaseLost(DedupeError):
    """The running lease ended, or was taken over, while the task body was still at work."""


class DeliveryLimitExceeded(DedupeError):
    """A message was delivered again and again, and none of its runs came to an end.

    Attributes:
        task: name of the task.
        task_id: its id.
        deliveries: how often it would have started by now.
        limit: the policy's ``max_deliveries``.
    """

    def __init__(self, task: str, task_id: str, deliveries: int, limit: int) -> None:
        super().__init__(task, task_id, deliveries, limit)
        self.task = task
        self.task_id = task_id
        self.deliveries = deliveries
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"{self.task}[{self.task_id}] has come {self.deliveries} times, since no run of it came to an "
            f"end, and max_deliveries is {self.limit}: find what kills its process (memory, a crash in C "
            "code), then call the task again"
        )


class RateExceeded(DedupeError):
    """A run would be one too many under its rate, and its policy does not let it wait.

    Attributes:
        task: name of the task.
        key: the rate's key in the store.
        available_in: seconds until the rate has a start free, by what is known now.
    """

    def __init__(self, task: str, key: str, available_in: float) -> None:
        super().__init__(task, key, available_in)
        self.task = task
        self.key = key
        self.available_in = available_in

    def __str__(self) -> str:
        return (
            f"{self.task} is over the rate of {self.key}, which has a start free in {self.available_in:.1f} s"
        )


class DuplicateTask(DedupeError):
    """The call is a duplicate: another task holds the lock it needs.

    Attributes:
        task: name of the task that was turned away.
        task_id: id of the task that holds the lock (the culprit).
        state: what the holder is: ``"queued"``, ``"running"`` or ``"done"``.
        expires_in: seconds until the holder's claim ends unless renewed; ``None`` if it is kept for ever.
        key: the lock's key in the store.
    """

    def __init__(self, task: str, task_id: str, state: str, expires_in: float | None, key: str) -> None:
        super().__init__(task, task_id, state, expires_in, key)
        self.task = task
        self.task_id = task_id
        self.state = state
        self.expires_in = expires_in
        self.key = key

    def __str__(self) -> str:
        left = (
            "for ever" if self.expires_in is None else f"for at most {self.expires_in:.1f} s unless renewed"
        )
        return (
            f"{self.task} is a duplicate of {self.task_id}, which is {self.state} and holds {self.key} {left}"
        )
