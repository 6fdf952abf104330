"""Runs the scripts of ``lua/`` on a redis-py client, each in one round trip."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError

from celery_dedupe.store.redis_errors import ANSWERING


class Scripts:
    """A client, and what is asked of it. Every failure becomes ``StoreUnavailable``."""

    chunk = 100  # Keys in one call for many: a pause of the server near a millisecond.
    _client: Any

    def clock(self) -> int:
        return int(self._run("now", [], []))

    def _run(self, verb: str, keys: Sequence[str], argv: Sequence[Any]) -> Any:
        source = self._source(verb)
        words = len(keys), *keys, *argv
        with ANSWERING:
            send: Any = self._client.execute_command
            # Undecoded, whatever a client of the user's is set to: a foreign value may be in no encoding.
            try:
                return send("EVALSHA", _digest(source), *words, NEVER_DECODE=[])
            except NoScriptError:
                pass
            return send("EVAL", source, *words, NEVER_DECODE=[])

    def _source(self, verb: str) -> str:
        return script("clock", *files_of(verb))


def files_of(verb: str) -> tuple[str, ...]:
    """The Lua files of a verb, which go after the one that reads the clock."""
    if verb == "claim":
        return ("free", "record", verb)
    return ("record", "pacing", verb) if verb in ("begin", "withdraw") else ("record", verb)


@cache
def script(*names: str) -> str:
    """The Lua files ``names`` as one script."""
    folder = files("celery_dedupe.store") / "lua"
    return "\n".join((folder / f"{name}.lua").read_text("utf-8") for name in names)


@cache
def _digest(source: str) -> str:
    return sha1(source.encode(), usedforsecurity=False).hexdigest()
