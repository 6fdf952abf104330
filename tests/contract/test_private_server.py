"""A server that trusts nobody: TLS by a private authority, a password, a user for the prefix alone.

What that user needs is the line of README.md, no more and no less.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from celery_dedupe.core.asks import Attempt, Caller, FinishAsk, LeaseAsk
from celery_dedupe.errors import StoreUnavailable
from celery_dedupe.store.connect import open_store
from celery_dedupe.store.protocol import Store
from tests.contract.asks import begun, claim, free, holder_ids, slot
from tests.harness.processes import ROOT
from tests.harness.servers import ValkeyServer
from tests.harness.tls import make_authority, tls_line

README = (ROOT / "README.md").read_text(encoding="utf-8")
(ACL,) = re.findall(r"<!-- acl -->\n```\n(ACL SETUSER .*)\n```", README)
CLUSTER = re.findall(r"A cluster also asks for `\+(\S+)` and `\+(\S+)`", README)[0]
COMMANDS = re.findall(r"\+(\S+)", ACL)
KEY = "dedupe:reports.make:0123456789abcdef"


@pytest.fixture
def server(start_valkey: Callable[..., ValkeyServer]) -> ValkeyServer:
    """It has the user of the README, and nobody else gets in without a password."""
    server = start_valkey()
    client = server.client()
    client.execute_command(*ACL.split())
    client.execute_command("ACL", "SETUSER", "default", "resetpass", ">of-the-test")
    return server


@pytest.fixture
def store(server: ValkeyServer, tmp_path: Path) -> Iterator[Store]:
    authority, certificate, key = make_authority(tmp_path)
    with (
        tls_line(server.host, server.port, certificate, key) as port,
        closing(
            open_store(f"rediss://dedupe:password@localhost:{port}/2", {"ssl_ca_certs": str(authority)})
        ) as store,
    ):
        yield store


def everything(store: Store) -> None:
    """All that publishers, workers, operators and counts ask of a server."""
    attempt = Attempt("t1", "tok", "n")
    facts = store.facts()
    assert facts.name.startswith("valkey")
    assert facts.size is not None
    assert store.claim([claim(KEY)], Caller("t1")) is None
    assert holder_ids(store.claim([claim(KEY)], Caller("t2"))) == ["t1"]
    begun(store, attempt, slot(KEY))
    assert store.renew([LeaseAsk(KEY, "tok", 60_000)]) == [True]
    assert store.finish([FinishAsk(KEY, "tok", "done", 0)], attempt, well=True) == [True]
    assert [key for key, _ in store.scan("dedupe:*")] == [KEY]
    assert free(store, [KEY]) == 1
    store.claim([claim(KEY)], Caller("t3"))
    store.withdraw([KEY], "t3")
    assert not store.read(KEY)
    store.count("dedupe:counts", Counter({("reports.make", "published"): 2}))
    assert store.counts("dedupe:counts") == {("reports.make", "published"): 2}
    assert store.swap("dedupe:observer", "", "a text", 60_000)
    assert store.look("dedupe:observer") == "a text"


def test_the_user_of_the_readme_can_do_all_there_is(store: Store) -> None:
    everything(store)


def test_and_nothing_outside_of_the_prefix(store: Store) -> None:
    store.claim([claim(KEY)], Caller("t1"))
    with pytest.raises(StoreUnavailable, match="NoPermission"):
        store.claim([claim("celery")], Caller("t1"))
    with pytest.raises(StoreUnavailable, match="NoPermission"):
        store.read("dedup")


@pytest.mark.parametrize("command", COMMANDS)
def test_it_needs_each_of_its_commands(store: Store, server: ValkeyServer, command: str) -> None:
    server.client().execute_command("ACL", "SETUSER", "dedupe", f"-{command}")
    with pytest.raises((StoreUnavailable, AssertionError)):
        everything(store)


def test_a_wrong_password_and_an_unknown_authority_are_told_from_each_other(
    server: ValkeyServer, tmp_path: Path
) -> None:
    authority, certificate, key = make_authority(tmp_path)
    with tls_line(server.host, server.port, certificate, key) as port:
        for login, options, told in (
            ("dedupe:wrong", {"ssl_ca_certs": str(authority)}, "WRONGPASS|invalid username-password"),
            ("dedupe:password", {}, "(?i)certificate"),
        ):
            with (
                closing(open_store(f"rediss://{login}@localhost:{port}", options)) as store,
                pytest.raises(StoreUnavailable, match=told),
            ):
                store.clock()


@pytest.mark.parametrize("left_out", ["", *CLUSTER])
def test_a_cluster_needs_two_commands_more(
    start_cluster: Callable[[], list[ValkeyServer]], left_out: str
) -> None:
    nodes = start_cluster()
    for node in nodes:
        more = (f"+{command}" for command in CLUSTER if command != left_out)
        node.client(0).execute_command(*ACL.split(), *more)
    url = f"redis+cluster://dedupe:password@{nodes[0].host}:{nodes[0].port}"
    with closing(open_store(url, {"socket_timeout": 5})) as store:
        if left_out:
            with pytest.raises(StoreUnavailable):
                everything(store)
            return
        everything(store)
        for number in range(20):
            assert store.claim([claim(f"{KEY}{number}")], Caller("t1")) is None
        assert len(list(store.scan("dedupe:*"))) == 20
