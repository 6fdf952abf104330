"""What is stored in Redis, and what becomes of values that are not ours."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
from redis.cluster import RedisCluster

from celery_dedupe.core.asks import Attempt, Begun, Caller, EvictAsk, FinishAsk, LeaseAsk
from celery_dedupe.core.parts import FOREVER
from celery_dedupe.errors import StoreUnavailable
from celery_dedupe.store.protocol import NotARecord, Store
from celery_dedupe.store.redis import RedisStore
from tests.contract.asks import MINUTE, begun, claim, free, pass_by, queued_ids, slot
from tests.contract.conftest import SERVERS, Client, Keys, store_on
from tests.harness.commands import count_commands
from tests.harness.servers import ValkeyServer

FOREIGN = {
    "text": lambda client, key: client.set(key, "somebody's text"),
    "a line too short": lambda client, key: client.set(key, "q t1 99999999999999"),
    "no number": lambda client, key: client.set(key, "q t1 soon 0 0"),
    "a newer kind of line": lambda client, key: client.set(key, "z t1 99999999999999"),
    "bytes": lambda client, key: client.set(key, b"\xff\xfe\x00"),
    "a list": lambda client, key: client.rpush(key, "a"),
    "a hash": lambda client, key: client.hset(key, "a", "b"),
}


@pytest.fixture
def redis_store(client: Client, keys: Keys) -> Iterator[RedisStore]:
    store = store_on(client)
    yield store
    free(store, [key for key, _ in store.scan(f"{keys.prefix}:*")])


ENDS = """
local clock = redis.call('TIME')
return clock[1] * 1000 + math.floor(clock[2] / 1000) + redis.call('PTTL', KEYS[1])
"""


class TestExpiry:
    def test_a_key_ends_with_its_last_part(self, redis_store: RedisStore, client: Client, keys: Keys) -> None:
        def check() -> None:
            expires_at = redis_store.read(keys()).expires_at
            assert expires_at is not None
            # PEXPIRETIME is not in Redis 6.2; in a script the clock stands still.
            assert abs(int(client.eval(ENDS, 1, keys())) - expires_at) <= 2

        redis_store.claim([claim(keys(), 5000)], Caller("t1"))
        check()
        redis_store.claim([claim(keys(), 9000, ())], Caller("t2"))
        check()
        begun(redis_store, Attempt("t1", "tok", "n"), slot(keys(), lease=2000))
        check()
        redis_store.begin([slot(keys(), mark=20_000)], Attempt("t1", "copy", "n"))
        check()
        redis_store.renew([LeaseAsk(keys(), "tok", MINUTE)])
        check()
        redis_store.finish([FinishAsk(keys(), "tok", "done", 15_000)], Attempt("t1", "tok"), well=True)
        check()
        free(redis_store, [keys()])
        check()

    def test_only_what_is_kept_for_ever_has_no_ttl(
        self, redis_store: RedisStore, client: Client, keys: Keys
    ) -> None:
        redis_store.claim([claim(keys(), 5000)], Caller("t1"))
        redis_store.finish([FinishAsk(keys(), "", "done", FOREVER)], Attempt("t1", ""), well=True)
        assert client.pttl(keys()) == -1
        redis_store.withdraw([keys()], "t1")
        assert client.pttl(keys()) == -1
        begun(redis_store, Attempt("t2", "tok"), slot(keys(), lease=5000))
        free(redis_store, [keys()], ("done",))
        assert 0 < client.pttl(keys()) <= 5000

    def test_a_finished_task_leaves_no_key(self, redis_store: RedisStore, client: Client, keys: Keys) -> None:
        redis_store.claim([claim(keys())], Caller("t1"))
        begun(redis_store, Attempt("t1", "tok"), slot(keys()))
        redis_store.finish([FinishAsk(keys(), "tok", "free")], Attempt("t1", "tok"), well=True)
        assert not client.exists(keys())

    def test_what_changes_nothing_writes_nothing(self, valkey: ValkeyServer, keys: Keys) -> None:
        store = RedisStore(valkey.client())
        store.claim([claim(keys())], Caller("t1"))
        before = _writes(valkey)
        store.claim([claim(keys())], Caller("t2"))
        store.withdraw([keys()], "t2", running=True)
        store.finish([FinishAsk(keys(), "tok", "free")], Attempt("t2", "tok"), well=True)
        store.renew([LeaseAsk(keys(), "tok", MINUTE)])
        assert _writes(valkey) == before


def _writes(server: ValkeyServer) -> int:
    return int(server.client().info("persistence")["rdb_changes_since_last_save"])


VERBS = {
    "claim": lambda store, keys: store.claim([claim(key) for key in keys], Caller("t1")),
    "duplicate": lambda store, keys: store.claim([claim(key) for key in keys], Caller("t2")),
    "begin": lambda store, keys: store.begin([slot(key) for key in keys], Attempt("t1", "tok")),
    "conflict": lambda store, keys: store.begin([slot(key) for key in keys], Attempt("t2", "tok2")),
    "renew": lambda store, keys: store.renew([LeaseAsk(key, "tok", MINUTE) for key in keys]),
    "finish": lambda store, keys: store.finish(
        [FinishAsk(key, "tok", "free") for key in keys], Attempt("t1", "tok"), well=True
    ),
    "withdraw": lambda store, keys: store.withdraw(keys, "t1"),
    "read": lambda store, keys: store.read(keys[0]),
    "evict": lambda store, keys: store.evict([EvictAsk(key, ("t1",), ("tok",)) for key in keys]),
    "clock": lambda store, keys: store.clock(),
}


class TestScripts:
    @pytest.mark.parametrize("client", [kind for kind in SERVERS if kind != "redis"], indirect=True)
    def test_they_survive_a_script_flush(self, redis_store: RedisStore, client: Client, keys: Keys) -> None:
        for number in range(3):
            client.script_flush()
            assert redis_store.claim([claim(keys(str(number)))], Caller("t1")) is None
            client.script_flush()
            assert queued_ids(redis_store.read(keys(str(number)))) == ["t1"]

    @pytest.mark.parametrize("count", [1, 3])
    def test_a_verb_is_one_command_for_any_number_of_locks(
        self, valkey: ValkeyServer, keys: Keys, count: int
    ) -> None:
        store = RedisStore(valkey.client())
        names = [keys(str(number)) for number in range(count)]
        for call in VERBS.values():  # The scripts are new to the server once.
            call(store, names)
        free(store, names)
        for verb, call in VERBS.items():
            with count_commands(valkey) as commands:
                call(store, names)
            assert commands.names() == ["EVALSHA"], verb

    def test_renewal_is_one_command_for_a_hundred_leases(self, valkey: ValkeyServer, keys: Keys) -> None:
        store = RedisStore(valkey.client())
        asks = [LeaseAsk(keys(str(number)), "tok", MINUTE) for number in range(100)]
        store.renew(asks)
        with count_commands(valkey) as commands:
            store.renew(asks)
        assert commands.names() == ["EVALSHA"]


@pytest.mark.parametrize("kind", FOREIGN)
class TestForeignValues:
    def test_every_verb_says_which_key_and_what_to_do(
        self, redis_store: RedisStore, client: Client, keys: Keys, kind: str
    ) -> None:
        key = keys("odd name with > and (")
        FOREIGN[kind](client, key)
        before = _size(client, key)
        calls: list[Callable[[Store], object]] = [
            lambda store: store.claim([claim(keys("other")), claim(key)], Caller("t1")),
            lambda store: store.begin([slot(key)], Attempt("t1", "tok")),
            lambda store: store.begin([pass_by(key)], Attempt("t1", "tok")),
            lambda store: store.finish([FinishAsk(key, "tok", "free")], Attempt("t1", "tok"), well=True),
            lambda store: store.withdraw([key], "t1"),
            lambda store: store.read(key),
            lambda store: store.evict([EvictAsk(key)]),
        ]
        for call in calls:
            with pytest.raises(StoreUnavailable) as raised:
                call(redis_store)
            assert isinstance(raised.value, NotARecord)
            assert raised.value.key == key
            assert "delete it, or set dedupe_prefix" in str(raised.value)
        assert _size(client, key) == before, "it is nobody's but its owner's"
        assert not client.exists(keys("other"))
        client.delete(key)

    def test_the_other_leases_are_renewed(
        self, redis_store: RedisStore, client: Client, keys: Keys, kind: str
    ) -> None:
        FOREIGN[kind](client, keys("foreign"))
        begun(redis_store, Attempt("t1", "tok"), slot(keys("a"), lease=5000), slot(keys("b"), lease=5000))
        asks = [LeaseAsk(keys(name), "tok", MINUTE) for name in ("a", "foreign", "b")]
        assert redis_store.renew(asks) == [True, False, True]
        assert client.pttl(keys("b")) > 5000
        client.delete(keys("foreign"))

    def test_a_scan_goes_on(
        self, redis_store: RedisStore, client: Client, keys: Keys, kind: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        FOREIGN[kind](client, keys("foreign"))
        redis_store.claim([claim(keys("ours"))], Caller("t1"))
        with caplog.at_level(logging.WARNING, "celery_dedupe"):
            assert dict(redis_store.scan(f"{keys.prefix}:*")).keys() == {keys("ours")}
        if kind not in ("a list", "a hash"):  # Other types are not looked at.
            assert keys("foreign") in caplog.text
        client.delete(keys("foreign"))


def _size(client: Client, key: str) -> int:
    kind = str(client.type(key))
    count = client.llen if "list" in kind else client.hlen if "hash" in kind else client.strlen
    return int(count(key))


def test_an_empty_value_is_an_empty_record(redis_store: RedisStore, client: Client, keys: Keys) -> None:
    client.set(keys(), "")
    assert not redis_store.read(keys())
    assert redis_store.claim([claim(keys())], Caller("t1")) is None
    assert queued_ids(redis_store.read(keys())) == ["t1"]


def test_a_client_of_the_users_stays_open(redis_store: RedisStore, client: Client, keys: Keys) -> None:
    if isinstance(client, RedisCluster):
        pytest.skip("store_on hands a cluster's client over")
    redis_store.clock()
    redis_store.close()
    assert isinstance(redis_store.begin([slot(keys())], Attempt("t1", "tok")), Begun)
