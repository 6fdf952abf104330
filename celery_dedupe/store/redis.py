"""Claims in Redis or Valkey (6.2 or newer): every verb is one script, run by EVALSHA in one round trip."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import redis

from celery_dedupe.core.asks import (
    Attempt,
    BeginAsk,
    BeginReply,
    Caller,
    ClaimAsk,
    EvictAsk,
    FinishAsk,
    LeaseAsk,
    Refused,
)
from celery_dedupe.core.record import Record
from celery_dedupe.core.suspicions import StoreFacts
from celery_dedupe.store import redis_text
from celery_dedupe.store.chunks import chunks
from celery_dedupe.store.protocol import NO_SLOTS, NotARecord
from celery_dedupe.store.redis_counts import RedisCounts
from celery_dedupe.store.redis_errors import ANSWERING
from celery_dedupe.store.redis_facts import read_facts
from celery_dedupe.store.redis_text import encode, encode_all, text

logger = logging.getLogger("celery_dedupe")


class RedisStore(RedisCounts):
    """The verbs of ``Store`` on a redis-py client, whose timeouts are the caller's choice.

    Every failure (refused, timed out, LOADING, READONLY, OOM, ...) becomes ``StoreUnavailable``.
    A script takes several keys, so that several locks of one task are granted together or not at all.

    Arguments:
        owned: ``close`` closes the client too.
    """

    def __init__(self, client: redis.Redis, *, owned: bool = False) -> None:
        self._client = client
        self._owned = owned

    def claim(self, asks: Sequence[ClaimAsk], caller: Caller) -> Refused | None:
        words = redis_text.claim_words(asks, caller)
        reply = self._run("claim", [ask.key for ask in asks], [words])
        return redis_text.refused(reply) if reply else None

    def withdraw(
        self,
        keys: Collection[str],
        task_id: str,
        *,
        running: bool = False,
        slots: Mapping[str, int] = NO_SLOTS,
    ) -> None:
        promised = [slots.get(key, 0) for key in keys]
        self._run("withdraw", list(keys), [encode(task_id), int(running), *promised])

    def begin(self, asks: Sequence[BeginAsk], attempt: Attempt) -> BeginReply:
        argv: list[Any] = [
            encode(attempt.task_id),
            encode(attempt.token),
            encode(attempt.nonce),
            attempt.generation,
            encode(attempt.node),
            attempt.started,
            encode_all(attempt.ended),
        ]
        for ask in asks:
            argv += int(ask.slot), ask.limit, ask.lease, ask.hold, ask.mark, int(ask.remembers), ask.trace
            argv += ask.deliveries, ask.counted
            argv += redis_text.rate(ask.rate)
        return redis_text.begin_reply(self._run("begin", [ask.key for ask in asks], argv))

    def renew(self, asks: Sequence[LeaseAsk]) -> list[bool]:
        kept: list[bool] = []
        for some in chunks(asks, self.chunk):
            argv = [value for ask in some for value in (encode(ask.token), ask.lease)]
            kept += map(bool, self._run("renew", [ask.key for ask in some], argv))
        return kept

    def finish(self, asks: Sequence[FinishAsk], attempt: Attempt, *, well: bool) -> list[bool]:
        argv: list[Any] = [encode(attempt.task_id), attempt.generation, int(well)]
        for ask in asks:
            argv += encode(ask.token), ask.outcome, ask.ttl, ask.deliveries
        return [bool(one) for one in self._run("finish", [ask.key for ask in asks], argv)]

    def read(self, key: str) -> Record:
        now, found = self._run("read", [key], [])
        return _record(key, found, int(now))

    def scan(self, pattern: str) -> Iterator[tuple[str, Record]]:
        for keys in chunks(self._keys(pattern), self.chunk):
            now, *texts = self._run("read", keys, [])
            for key, found in zip(keys, texts, strict=True):
                try:
                    record = _record(key, found, int(now))
                except NotARecord as error:
                    logger.warning("%s", error)
                    continue
                if record:
                    yield key, record

    def evict(self, asks: Sequence[EvictAsk]) -> list[int]:
        freed: list[int] = []
        for some in chunks(asks, self.chunk):
            argv = [
                word
                for ask in some
                for word in (encode_all(ask.queued), encode_all(ask.tokens), encode(ask.done))
            ]
            freed += map(int, self._run("evict", [ask.key for ask in some], argv))
        return freed

    def facts(self) -> StoreFacts:
        with ANSWERING:
            return read_facts(self._client)

    def close(self) -> None:
        if self._owned:
            self._client.close()

    def _keys(self, pattern: str) -> Iterator[str]:
        with ANSWERING:
            found = self._client.scan_iter(match=pattern, count=1000, _type="string")
        while True:
            with ANSWERING:
                key = next(found, None)
            if key is None:
                return
            yield text(key)


def _record(key: str, found: Any, now: int) -> Record:
    if not found:
        return Record()
    try:
        return redis_text.record(text(found)).live(now)
    except (KeyError, ValueError) as error:
        raise NotARecord(key) from error
