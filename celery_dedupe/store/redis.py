"""Claims in Redis or Valkey (6.2 or newer): every verb is one script, run by EVALSHA in one round trip."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any
from urllib.parse import quote, unquote

import redis
from redis.exceptions import NoScriptError, RedisError

from celery_dedupe.core.record import Done, Ended, Holder, Queued, Record, Running
from celery_dedupe.core.transitions import (
    Attempt,
    BeginAsk,
    BeginReply,
    Begun,
    Caller,
    ClaimAsk,
    FinishAsk,
    LeaseAsk,
    Over,
    Redelivered,
    Refused,
)
from celery_dedupe.errors import StoreUnavailable

STATES = {"q": "queued", "r": "running", "d": "done"}
CHUNK = 200  # Locks in one script at most: keeps the server's longest pause near a millisecond.


class RedisStore:
    """The verbs of ``Store`` on a redis-py client, whose timeouts are the caller's choice.

    Every ``RedisError`` (refused, timed out, LOADING, READONLY, OOM, ...) becomes ``StoreUnavailable``.
    A script takes several keys, so that several locks of one task are granted together or not at all.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def claim(self, asks: Sequence[ClaimAsk], caller: Caller) -> Refused | None:
        argv: list[Any] = [_encode(caller.task_id), _encode(caller.inside), caller.retries, " ".join(caller.ended)]
        for ask in asks:
            argv += ask.ttl, "".join(sorted(state[0] for state in ask.blocked_by))
        reply = self._run("claim", [ask.key for ask in asks], argv)
        return _refused(reply) if reply else None

    def withdraw(self, keys: Collection[str], task_id: str, *, running: bool = False) -> None:
        self._run("withdraw", list(keys), [_encode(task_id), int(running)])

    def begin(self, asks: Sequence[BeginAsk], attempt: Attempt) -> BeginReply:
        argv: list[Any] = [
            _encode(attempt.task_id),
            attempt.token,
            _encode(attempt.nonce),
            attempt.retries,
            _encode(attempt.node),
            attempt.started,
            " ".join(attempt.ended),
        ]
        for ask in asks:
            argv += int(ask.slot), ask.limit, ask.lease, ask.hold, ask.mark, int(ask.remembers)
        verdict, *rest = self._run("begin", [ask.key for ask in asks], argv)
        match _text(verdict):
            case "begun":
                return Begun(tuple(int(fence) for fence in rest))
            case "refused":
                return _refused(rest)
            case "redelivered":
                return Redelivered(int(rest[0]) - 1, int(rest[1]))
            case _:
                return Over()

    def renew(self, asks: Sequence[LeaseAsk]) -> list[bool]:
        kept: list[bool] = []
        for start in range(0, len(asks), CHUNK):
            some = asks[start : start + CHUNK]
            argv = [value for ask in some for value in (ask.token, ask.lease)]
            kept += [bool(one) for one in self._run("renew", [ask.key for ask in some], argv)]
        return kept

    def finish(self, asks: Sequence[FinishAsk], attempt: Attempt, *, well: bool) -> list[bool]:
        argv: list[Any] = [_encode(attempt.task_id), attempt.retries, int(well)]
        for ask in asks:
            argv += ask.token or "-", ask.outcome, ask.ttl
        return [bool(one) for one in self._run("finish", [ask.key for ask in asks], argv)]

    def read(self, key: str) -> Record:
        with _unavailable():
            text = self._client.get(key)
        return parse(_text(text)).live(self.clock()) if text else Record()

    def scan(self, pattern: str) -> Iterator[tuple[str, Record]]:
        now = self.clock()
        for keys in _chunks(self._keys(pattern)):
            with _unavailable():
                texts = self._client.mget(keys)
            for key, text in zip(keys, texts, strict=True):
                if text and (record := parse(_text(text)).live(now)):
                    yield key, record

    def evict(self, keys: Collection[str], *, running: bool = False) -> int:
        return sum(int(self._run("evict", some, [int(running)])) for some in _chunks(keys))

    def clock(self) -> int:
        with _unavailable():
            seconds, micros = self._client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def close(self) -> None:
        self._client.close()

    def _keys(self, pattern: str) -> Iterator[str]:
        with _unavailable():
            for key in self._client.scan_iter(match=pattern, count=1000):
                yield _text(key)

    def _run(self, verb: str, keys: Sequence[str], argv: Sequence[Any]) -> Any:
        source = self._source(verb)
        with _unavailable():
            try:
                return self._client.evalsha(_digest(source), len(keys), *keys, *argv)
            except NoScriptError:
                return self._client.eval(source, len(keys), *keys, *argv)

    def _source(self, verb: str) -> str:
        return script("clock", "record", verb)


@cache
def script(*names: str) -> str:
    """The Lua files ``names`` as one script."""
    folder = files("celery_dedupe.store") / "lua"
    return "\n".join((folder / f"{name}.lua").read_text("utf-8") for name in names)


def parse(text: str) -> Record:
    """A record from its text form; the form is written down in ``lua/record.lua``."""
    record: dict[str, list[Any]] = {"q": [], "r": [], "d": [], "e": []}
    for line in text.splitlines():
        kind, *part = line.split(" ")
        record[kind].append(part)
    return Record(
        tuple(Queued(_decode(task_id), int(expires), int(retries)) for task_id, expires, retries in record["q"]),
        tuple(_running(*part) for part in record["r"]),
        next((Done(_decode(task_id), int(expires)) for task_id, expires in record["d"]), None),
        tuple(Ended(_decode(task_id), _decode(nonce), int(expires)) for task_id, nonce, expires in record["e"]),
    )


def _running(
    token: str,
    task_id: str,
    nonce: str,
    fence: str,
    retries: str,
    node: str,
    started: str,
    expires: str,
    marked: str,
) -> Running:
    return Running(
        token,
        _decode(task_id),
        _decode(nonce),
        int(fence),
        int(retries),
        _decode(node),
        int(started),
        int(expires),
        int(marked),
    )


def _refused(reply: Sequence[Any]) -> Refused:
    index, *rest = reply
    holders = []
    for at in range(0, len(rest), 5):
        state, task_id, left, token, started = (_text(value) for value in rest[at : at + 5])
        expires_in = None if left == "-1" else int(left)
        holders.append(Holder(STATES[state], _decode(task_id), expires_in, token, int(started)))
    return Refused(int(index) - 1, tuple(holders))


@cache
def _digest(source: str) -> str:
    return sha1(source.encode(), usedforsecurity=False).hexdigest()


def _encode(text: str) -> str:
    # An empty field is written as "-", so a real "-" may not look like it.
    return "%2D" if text == "-" else quote(text, safe="@:") or "-"


def _decode(text: str) -> str:
    return "" if text == "-" else unquote(text)


def _text(value: Any) -> str:
    # A client that the user made may decode replies already.
    return value.decode() if isinstance(value, bytes) else str(value)


def _chunks(keys: Iterable[str]) -> Iterator[list[str]]:
    some: list[str] = []
    for key in keys:
        some.append(key)
        if len(some) == CHUNK:
            yield some
            some = []
    if some:
        yield some


class _unavailable:  # noqa: N801 - reads as the statement it is, and is cheaper than a generator
    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RedisError):
            raise StoreUnavailable(f"the claim store did not answer: {type(error).__name__}: {error}") from error
