"""The claims that an app has in its stores: how commands walk over them."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from urllib.parse import quote, unquote

import click

from celery_dedupe.cli.command import Wrong
from celery_dedupe.core.keys import readable
from celery_dedupe.core.places import place_of
from celery_dedupe.core.record import Record
from celery_dedupe.extension import Dedupe
from celery_dedupe.store.named import Place

LONG = 5000  # records, after which a bar shows that it goes on


@dataclass(frozen=True, slots=True)
class Claims:
    """Claims of an app, in all its stores: of some scopes, which are mostly names of tasks, or of one key."""

    stores: Collection[Place]
    prefix: str
    globs: tuple[str, ...] | None = None  # None: every scope
    key: str | None = None  # this one alone

    @property
    def now(self) -> int:
        """The stores' clock, in ms; of several the latest."""
        return max(store.clock() for store in self.stores)

    def scope(self, key: str) -> str | None:
        """The scope that a key of the app is of; ``None`` if it is another app's, or none."""
        bare = place_of(key)[1]
        lead, _, digest = bare.removeprefix(f"{self.prefix}:").partition(":")
        return unquote(lead) if bare.startswith(f"{self.prefix}:") and digest and ":" not in digest else None

    def records(self) -> Iterator[tuple[Place, str, Record]]:
        """Every record with its store and key, in steps; on a terminal with a bar if it takes long."""
        found = self._found()
        yield from islice(found, LONG)
        if (following := next(found, None)) is None:
            return
        yield following
        if not sys.stderr.isatty():
            yield from found
            return
        length = self._length()
        label, every = "Reading claims", 500
        with click.progressbar(
            found, length, label, show_pos=length is None, file=sys.stderr, update_min_steps=every
        ) as bar:
            yield from bar

    def _found(self) -> Iterator[tuple[Place, str, Record]]:
        for store in self.stores:
            for key, record in self._at(store):
                if self.scope(key) is not None:
                    yield store, key, record

    def _at(self, store: Place) -> Iterator[tuple[str, Record]]:
        if self.key is not None:
            yield self.key, store.read(self.key)
            return
        for glob in ("*",) if self.globs is None else self.globs:
            yield from store.scan(f"{self.prefix}:{glob}:*")

    def _length(self) -> int | None:
        sizes = [store.facts().size for store in self.stores]
        return None if self.globs or None in sizes else max(sum(filter(None, sizes)) - LONG - 1, 1)


def claims_of(dedupe: Dedupe, task: str | None = None, key: str | None = None) -> Claims:
    """The claims of the tasks that match the glob ``task``, or of one key, or all there are.

    Raises ``Wrong`` in mode off, and for a key that is not the app's.
    """
    if dedupe.settings.mode == "off":
        raise Wrong("dedupe_mode is 'off', so there is no claim store to look at")
    globs = None if task is None else _globs(dedupe, task)
    places = dedupe.guard.store.places.values()
    stores = tuple(place for place in places if key is None or place.name == place_of(key)[0])
    claims = Claims(stores, dedupe.settings.prefix, globs, key)
    if key is not None and (not stores or claims.scope(key) is None):
        raise Wrong(f"{key!r} is no key of this app; locks shows them: {claims.prefix}:SCOPE:DIGEST")
    return claims


def _globs(dedupe: Dedupe, task: str) -> tuple[str, ...]:
    """The glob as one of scopes, which reaches tasks unknown here, and the scopes that its tasks share."""
    names = [name for name in dedupe.app.tasks if fnmatchcase(name, task)]
    scopes = {policy.scope for name in names for policy in dedupe.match(name).policies if policy.scope}
    others = sorted(scope for scope in scopes if not fnmatchcase(scope, task))
    return (quote(task, safe="*?[]"), *map(readable, others))
