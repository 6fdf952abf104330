"""Any text is a name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_dedupe.core.asks import Attempt, Caller, FinishAsk, LeaseAsk, Redelivered, Refused
from celery_dedupe.core.parts import Ended
from celery_dedupe.store.protocol import Store
from tests.contract.asks import MINUTE, begun, claim, holder_ids, queued_ids, slot
from tests.contract.conftest import Keys

ODD = [
    "two words",
    " blank at the ends ",
    "line\nbreak",
    "carriage\r\nreturn",
    "-",
    "--",
    "%",
    "%2D",
    "a%20b",
    "naïve ☃ 漢字 🦊",
    "\x00\x1f\x7f\x85\u2028",
    "q r d e",
    "x" * 200,
    "\ud800",
]


class TestOddNames:
    @pytest.mark.parametrize("name", ODD, ids=ascii)
    def test_any_text_is_a_task_id_a_nonce_a_token_a_node(self, store: Store, keys: Keys, name: str) -> None:
        key = keys("q r\nd%-")
        assert store.claim([claim(key, blocked_by=("queued", "running"))], Caller(name, inside=name)) is None
        assert queued_ids(store.read(key)) == [name]
        assert holder_ids(store.claim([claim(key)], Caller("x"))) == [name]
        attempt = Attempt(name, name, name, node=name)
        begun(store, attempt, slot(key))
        (run,) = store.read(key).running
        assert (run.token, run.task_id, run.nonce, run.node) == (name, name, name, name)
        reply = store.begin([slot(key)], Attempt("x", "x"))
        assert isinstance(reply, Refused)
        assert (reply.holders[0].task_id, reply.holders[0].token) == (name, name)
        assert isinstance(store.begin([slot(key, mark=MINUTE)], replace(attempt, token="copy")), Redelivered)
        assert store.renew([LeaseAsk(key, name, MINUTE)]) == [True]
        assert store.finish([FinishAsk(key, name, "done", MINUTE)], attempt, well=True) == [True]
        record = store.read(key)
        assert record.done
        assert record.done.task_id == name
        assert record.ended == (Ended(name, name, record.ended[0].expires_at),)
        begun(store, Attempt("x", "x", ended=(name,)), slot(key))
        store.claim([claim(key, blocked_by=())], Caller(name))
        store.withdraw([key], name)
        assert not store.read(key).queued

    @pytest.mark.parametrize("name", ODD, ids=ascii)
    def test_none_is_taken_for_another(self, store: Store, keys: Keys, name: str) -> None:
        for place, other in enumerate(ODD):
            store.claim([claim(keys(str(place)))], Caller(other))
            reply = store.claim([claim(keys(str(place)))], Caller(name, inside=name))
            assert (reply is None) == (name == other)

    def test_an_empty_node_and_nonce_are_empty(self, store: Store, keys: Keys) -> None:
        begun(store, Attempt("t1", "tok"), slot(keys()))
        (run,) = store.read(keys()).running
        assert (run.node, run.nonce) == ("", "")
