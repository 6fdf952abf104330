"""What the Redis store makes of its client's failures and replies, without a server."""

from __future__ import annotations

import inspect
import pickle
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
from redis import exceptions

from celery_dedupe.core.asks import Caller, ClaimAsk
from celery_dedupe.core.parts import Done, Ended, Queued, Running
from celery_dedupe.core.record import Record
from celery_dedupe.errors import StoreUnavailable
from celery_dedupe.store import redis_text
from celery_dedupe.store.protocol import NotARecord
from celery_dedupe.store.redis import RedisStore
from celery_dedupe.store.redis_scripts import script


class Client:
    """Answers each command with the next of ``replies``; an exception among them is raised."""

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)
        self.commands: list[str] = []
        self.closed = False

    def execute_command(self, name: str, *words: Any, **options: Any) -> Any:
        self.commands.append(name)
        reply = self.replies.pop(0)
        if isinstance(reply, BaseException):
            raise reply
        return reply

    def scan_iter(self, **options: Any) -> Iterator[bytes]:
        yield from (self.execute_command("SCAN") for _ in range(len(self.replies)))

    def close(self) -> None:
        self.closed = True


ASK = ClaimAsk("dedupe:a:1", 1000, frozenset({"queued"}))


def claim(*replies: Any) -> Client:
    client = Client(*replies)
    RedisStore(client).claim([ASK], Caller("t1"))  # type: ignore[arg-type]
    return client


ALL = [
    kind
    for _, kind in inspect.getmembers(exceptions, inspect.isclass)
    if issubclass(kind, (exceptions.RedisError, exceptions.RedisClusterException))
    # Those two are for the client itself: run the script anew, ask another node.
    and not issubclass(kind, (exceptions.NoScriptError, exceptions.AskError, exceptions.WatchError))
]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_failure_of_the_client_is_store_unavailable(kind: type[Exception]) -> None:
    with pytest.raises(StoreUnavailable) as raised:
        claim(kind("what went wrong"))
    assert "what went wrong" in str(raised.value)
    assert kind.__name__ in str(raised.value)
    assert isinstance(raised.value.__cause__, kind)


@pytest.mark.parametrize(
    "error",
    [OSError("x"), TimeoutError("x"), ConnectionResetError("x"), socket.gaierror("x"), ssl.SSLError("x")],
    ids=lambda error: type(error).__name__,
)
def test_so_is_one_of_the_system(error: Exception) -> None:
    with pytest.raises(StoreUnavailable):
        claim(error)


@pytest.mark.parametrize("error", [TypeError("a bug"), KeyboardInterrupt(), SystemExit(1)])
def test_bugs_and_interrupts_go_through(error: BaseException) -> None:
    with pytest.raises(type(error)):
        claim(error)


def test_a_scan_fails_in_any_step() -> None:
    key, failure = b"dedupe:a:1", exceptions.ConnectionError("gone")
    for replies in ([failure], [key, failure]):
        store = RedisStore(Client(*replies))  # type: ignore[arg-type]
        with pytest.raises(StoreUnavailable, match="gone"):
            list(store.scan("*"))


def test_a_script_that_the_server_does_not_know_is_sent_once() -> None:
    assert claim(exceptions.NoScriptError("NOSCRIPT"), []).commands == ["EVALSHA", "EVAL"]
    assert claim([]).commands == ["EVALSHA"]
    with pytest.raises(StoreUnavailable):
        claim(exceptions.NoScriptError("NOSCRIPT"), exceptions.TimeoutError("slow"))


def test_a_password_in_a_failure_is_not_shown() -> None:
    # As redis-py 6 and 7 do when no Sentinel answers.
    text = "No master : <Redis(<Pool(<Connection(db=0,username=u,password=s3cr3t,socket_timeout=1)>)>)> - x"
    with pytest.raises(StoreUnavailable) as raised:
        claim(exceptions.ConnectionError(text))
    assert "s3cr3t" not in str(raised.value)
    assert "password=***,socket_timeout=1" in str(raised.value)


@pytest.mark.parametrize("key", ["dedupe:a:1", "odd > (\n<key>", "> is not a record"])
def test_a_foreign_value_is_named_by_its_key(key: str) -> None:
    text = f'ERR user_script:25: celery-dedupe: <{key}> is not a record script: 1a, on @user_script:25. "<x>"'
    with pytest.raises(NotARecord) as raised:
        claim(exceptions.ResponseError(text))
    assert raised.value.key == key
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (type(copy), copy.key, str(copy)) == (NotARecord, key, str(raised.value))


def test_only_a_client_of_its_own_is_closed() -> None:
    for owned in (True, False):
        client = Client()
        RedisStore(client, owned=owned).close()  # type: ignore[arg-type]
        assert client.closed is owned


def test_the_form_of_a_record() -> None:
    """It is read by older and newer versions during a rolling deploy: a change needs another prefix."""
    lines = (
        "q t%201 1700000000001 2 1700000000000\n"
        "r tok t2 - 1700000000000000 0 celery@host 1700000000002 1700000000003 0\n"
        "e t2 %2D 1700000000004\n"
        "d t3 0 1700000000005"
    )
    run = Running("tok", "t2", "", 1700000000000000, 0, "celery@host", 1700000000002, 1700000000003)
    assert redis_text.record(lines) == Record(
        (Queued("t 1", 1700000000001, 2, 1700000000000),),
        (run,),
        Done("t3", 0, 1700000000005),
        (Ended("t2", "-", 1700000000004),),
    )


@pytest.mark.parametrize("value", ["", "-", "--", "%", "a b", "\n", "é", "\ud800", "a%20b", "x" * 300])
def test_a_word_is_its_value(value: str) -> None:
    word = redis_text.encode(value)
    assert redis_text.decode(word) == value
    assert word
    assert word.isascii()
    assert not set(word) & set(" \t\r\n\v\f")


def test_ids_as_celery_makes_them_stay_readable() -> None:
    for plain in ("0b5c6f3e-7d1c-4a53-9b5e-1f2f3c4d5e6f", "celery@host.example.com", "a_b.c~d:e"):
        assert redis_text.encode(plain) == plain


@pytest.mark.parametrize("verb", ["claim", "withdraw", "begin", "renew", "finish", "evict"])
def test_every_script_opens_with_its_contract(verb: str) -> None:
    head = script(verb).split("\n\n")[0].splitlines()
    comment = "\n".join(line for line in head if line.startswith("--"))
    for word in ("-- KEYS ", "-- ARGV ", "-- reply "):
        assert word in comment
