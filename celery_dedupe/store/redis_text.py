"""The text that goes to ``lua/`` and comes back; for a record's form see ``lua/record.lua``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any
from urllib.parse import quote, unquote

from celery_dedupe.core.asks import (
    BeginReply,
    Begun,
    Caller,
    ClaimAsk,
    Exceeded,
    Later,
    Over,
    RateAsk,
    Redelivered,
    Refused,
)
from celery_dedupe.core.counts import Counts, total
from celery_dedupe.core.parts import Delivered, Done, Ended, Holder, Pace, Queued, Running, Trace
from celery_dedupe.core.record import Record

STATES = {"q": "queued", "r": "running", "d": "done", "t": "lapsed"}
EMPTY = "-"


_PLAIN = re.compile(r"[\w.~@:-]+", re.ASCII).fullmatch


def encode(value: str) -> str:
    """A value as one word without blanks."""
    if _PLAIN(value) and value != EMPTY:
        return value  # As ``quote`` would, in a tenth of its time.
    word = quote(value, safe="@:", errors="surrogatepass")
    return "%2D" if word == EMPTY else word or EMPTY


def decode(word: str) -> str:
    """The value that ``encode`` made the word of."""
    if "%" in word:
        return unquote(word, errors="surrogatepass")
    return "" if word == EMPTY else word


def encode_all(values: Iterable[str]) -> str:
    """Several values as words with blanks between."""
    return " ".join(map(encode, values))


def count_words(counts: Counts) -> list[str | int]:
    """What ``count.lua`` is told of counts: a field, its number, and so on."""
    return [word for (task, what), number in counts.items() for word in (f"{what} {encode(task)}", number)]


def counts(replies: Iterable[Sequence[Any]]) -> dict[tuple[str, str], int]:
    """The sum of what ``counts.lua`` says."""
    return total(
        ((decode(task), what), int(number))
        for words in replies
        for field, number in zip(words[::2], words[1::2], strict=True)
        for what, _, task in [text(field).partition(" ")]
    )


def claim_words(asks: Sequence[ClaimAsk], caller: Caller) -> str:
    """What ``claim.lua`` is given."""
    words = [encode(caller.task_id), encode(caller.inside), str(caller.over)]
    for ask in asks:
        words += str(ask.ttl), _initials(ask.blocked_by)
    return " ".join([*words, *map(encode, caller.ended)])


@cache
def _initials(states: frozenset[str]) -> str:
    return "".join(sorted(state[0] for state in states)) or EMPTY


def text(reply: Any) -> str:
    """A string or number of a reply."""
    return reply.decode() if isinstance(reply, bytes) else str(reply)


def record(lines: str) -> Record:
    """A record from its text. Raises ``ValueError`` or ``KeyError`` if it is not one."""
    parts: dict[str, list[list[str]]] = {"q": [], "r": [], "d": [], "e": [], "t": [], "n": [], "s": []}
    for line in lines.split("\n"):
        kind, *part = line.split(" ")
        parts[kind].append(part)
    done = [Done(decode(task_id), int(expires), int(since)) for task_id, expires, since in parts["d"]]
    return Record(
        tuple(
            Queued(decode(task_id), int(expires), int(generation), int(since))
            for task_id, expires, generation, since in parts["q"]
        ),
        tuple(_running(part) for part in parts["r"]),
        done[0] if done else None,
        tuple(Ended(decode(task_id), decode(nonce), int(expires)) for task_id, nonce, expires in parts["e"]),
        tuple(
            Trace(decode(task_id), decode(token), int(started), int(expires))
            for task_id, token, started, expires in parts["t"]
        ),
        tuple(
            Delivered(decode(task_id), decode(nonce), int(count), int(expires))
            for task_id, nonce, count, expires in parts["n"]
        ),
        _pace(*parts["s"][0]) if parts["s"] else None,
    )


def refused(reply: Sequence[Any]) -> Refused:
    """A refusal from its index, counted from 1, and a text of five words for each holder."""
    index, *lines = map(text, reply)
    holders = []
    for line in lines:
        state, task_id, left, token, started = line.split(" ")
        expires_in = None if left == "-1" else int(left)
        holders.append(Holder(STATES[state], decode(task_id), expires_in, decode(token), int(started)))
    return Refused(int(index) - 1, tuple(holders))


def begin_reply(reply: Sequence[Any]) -> BeginReply:
    """What ``begin.lua`` says."""
    verdict, *rest = map(text, reply)
    if verdict == "begun":
        delay, *fences = map(int, rest)
        return Begun(tuple(fences), delay)
    if verdict == "refused":
        return refused(rest)
    if verdict == "redelivered":
        return Redelivered(int(rest[0]) - 1, int(rest[1]))
    if verdict == "exceeded":
        return Exceeded(int(rest[0]) - 1, int(rest[1]))
    if verdict == "later":
        index, wait, *slots = map(int, rest)
        return Later(index - 1, wait, tuple(slots))
    return Over()


def rate(ask: RateAsk | None) -> tuple[int, ...]:
    """The words of a rate, or of none."""
    if ask is None:
        return (0,) * 6
    return ask.starts, ask.window, ask.slot, int(ask.reserves), ask.patience, ask.silence


def _pace(starts: str, window: str, tail: str, gap: str, freed: str, expires: str) -> Pace:
    return Pace(_times(starts), int(window), int(tail), int(gap), _times(freed), int(expires))


def _times(word: str) -> tuple[int, ...]:
    """Times of sixteen digits each; see ``lua/pacing.lua``."""
    return tuple(int(word[at : at + 16]) for at in range(0, len(word), 16)) if word != EMPTY else ()


def _running(part: Sequence[str]) -> Running:
    token, task_id, nonce, fence, generation, node, started, expires, marked = part
    return Running(
        decode(token),
        decode(task_id),
        decode(nonce),
        int(fence),
        int(generation),
        decode(node),
        int(started),
        int(expires),
        int(marked),
    )
