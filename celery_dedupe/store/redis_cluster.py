"""Claims in a cluster, where two locks of one task may live on two servers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

from redis.cluster import RedisCluster

from celery_dedupe.core.asks import (
    Attempt,
    BeginAsk,
    BeginReply,
    Caller,
    ClaimAsk,
    FinishAsk,
    LeaseAsk,
    Refused,
)
from celery_dedupe.store import apart
from celery_dedupe.store.apart import Ask, Group, grouped
from celery_dedupe.store.protocol import NO_SLOTS
from celery_dedupe.store.redis import RedisStore


class ClusterStore(RedisStore):
    """The verbs of ``Store`` in a cluster: one script a key, in the order of the list.

    Each lock by itself is as safe as in ``RedisStore``; a list of them is less than atomic, see ``apart``.
    Where one server does not answer, the others are still given their renewals and releases before the error.

    Arguments:
        connect: makes the client; asked on first use and until it succeeds, since redis-py fetches the slots
            of the cluster while it makes one.
        owned: ``close`` closes the client too.
    """

    chunk = 1

    def __init__(self, connect: Callable[[], RedisCluster], *, owned: bool = True) -> None:
        self._connect = connect
        self._owned = owned

    @cached_property
    def _client(self) -> Any:
        return self._connect()

    def close(self) -> None:
        if "_client" in self.__dict__:
            super().close()

    def claim(self, asks: Sequence[ClaimAsk], caller: Caller) -> Refused | None:
        return apart.claim(_by_key(asks, super()), caller)

    def withdraw(
        self,
        keys: Collection[str],
        task_id: str,
        *,
        running: bool = False,
        slots: Mapping[str, int] = NO_SLOTS,
    ) -> None:
        one = super().withdraw
        apart.each(lambda key: one([key], task_id, running=running, slots=slots), keys)

    def begin(self, asks: Sequence[BeginAsk], attempt: Attempt) -> BeginReply:
        return apart.begin(apart.rates_last(_by_key(asks, super())), attempt)

    def renew(self, asks: Sequence[LeaseAsk]) -> list[bool]:
        one = super().renew
        return [kept for reply in apart.each(lambda ask: one([ask]), asks) for kept in reply]

    def finish(self, asks: Sequence[FinishAsk], attempt: Attempt, *, well: bool) -> list[bool]:
        return apart.finish(_by_key(asks, super()), attempt, well=well)


def _by_key(asks: Sequence[Ask], store: Any) -> list[Group[Ask]]:
    return grouped(asks, lambda key: key, lambda key: store)
