"""What Redis keeps that is no claim: counts, and texts of an observer. Hashes all, which no scan meets."""

from __future__ import annotations

from celery_dedupe.core.counts import HOUR, KEPT, Counts, hours
from celery_dedupe.store import redis_text
from celery_dedupe.store.chunks import chunks
from celery_dedupe.store.redis_scripts import Scripts


class RedisCounts(Scripts):
    """The verbs of ``Store`` that count and observe."""

    def count(self, name: str, counts: Counts) -> None:
        # The clock first: what does not answer is told nothing that it might add much later, and twice.
        keys = f"{name}:{self.clock() // HOUR}", f"{name}:total"
        argv = [KEPT, *redis_text.count_words(counts)]
        for some in chunks(keys, self.chunk):
            self._run("count", some, argv)

    def counts(self, name: str, since: int | None = None) -> dict[tuple[str, str], int]:
        places = ("total",) if since is None else hours(since, self.clock())
        keys = (f"{name}:{place}" for place in places)
        return redis_text.counts(self._run("counts", some, []) for some in chunks(keys, self.chunk))

    def look(self, key: str) -> str:
        return redis_text.text(self._run("look", [key], []) or "")

    def swap(self, key: str, before: str, after: str, ttl: int) -> bool:
        return bool(self._run("swap", [key], [before, after, ttl]))
