"""What is allowed and likely to surprise: one sentence each, with what to do, and none where all fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_dedupe import Policy
from celery_dedupe.core.locks import LOCKS
from celery_dedupe.core.suspicions import StoreFacts, suspicions

SOUND = StoreFacts("valkey 9.1", evicts="", persists=True, writable=True)
SILENT = StoreFacts("a Redis that does not tell of itself")


def policy(lock="until_finished", **fields):
    if lock == "until_expired":
        fields["period"] = 60
    return Policy(lock=lock, **fields)


def found(*policies, facts=SOUND, visibility_timeout=None, private_results=False):
    tasks = {"mail.send": policies} if policies else {}
    return texts(
        suspicions(tasks, facts, visibility_timeout=visibility_timeout, private_results=private_results)
    )


def texts(findings):
    assert {finding.kind for finding in findings} <= {"error", "warning"}
    return [finding.text for finding in findings]


@pytest.mark.parametrize("facts", [SOUND, SILENT])
def test_where_all_fits_nothing_is_said(facts):
    assert found(*[policy(lock) for lock in LOCKS], facts=facts, visibility_timeout=3600) == []


def test_claims_in_the_memory_of_one_process():
    (sentence,) = found(policy(), facts=replace(SOUND, shared=False))
    assert sentence.startswith("memory:// keeps claims in this process alone")
    assert "set dedupe_url" in sentence


def test_a_replica():
    (sentence,) = found(policy(), facts=replace(SOUND, writable=False))
    assert sentence.startswith("valkey 9.1 is a replica")
    assert "primary" in sentence


def test_a_server_that_may_drop_claims():
    (sentence,) = found(policy(), facts=replace(SOUND, evicts="allkeys-lru"))
    assert "valkey 9.1 may drop claims" in sentence
    assert "allkeys-lru" in sentence
    assert "noeviction" in sentence


@pytest.mark.parametrize("lock", LOCKS)
def test_a_server_that_forgets_what_was_done_once(lock):
    """The other locks free themselves anyway."""
    sentences = found(policy(lock), facts=replace(SOUND, persists=False))
    assert [("appendonly" in sentence, "'once'" in sentence) for sentence in sentences] == (
        [(True, True)] if lock == "once" else []
    )


@pytest.mark.parametrize(
    ("lease", "visibility_timeout", "expected"),
    [(60, 30, True), (60, 60, False), (60, 3600, False), ("2h", 3600, True), ("30d", None, False)],
)
def test_a_lease_that_outlives_the_brokers_patience(lease, visibility_timeout, expected):
    sentences = found(policy(lease=lease), visibility_timeout=visibility_timeout)
    assert bool(sentences) is expected
    for sentence in sentences:
        assert "the lease of mail.send" in sentence
        assert f"{visibility_timeout} s" in sentence
        assert "shorter lease" in sentence


def test_only_a_lock_with_runs_has_a_lease():
    assert found(policy("until_started"), policy("until_expired"), visibility_timeout=1) == []


def test_each_task_and_policy_is_named():
    tasks = {"a": [policy(lease=90), policy("once", lease=120)], "b": [policy(lease=100)], "c": [policy()]}
    sentences = texts(suspicions(tasks, SOUND, visibility_timeout=60, private_results=False))
    named = [("a", "90 s"), ("a", "120 s"), ("b", "100 s")]
    assert len(sentences) == 3
    for sentence, (task, lease) in zip(sentences, named, strict=True):
        assert f"the lease of {task}, {lease}" in sentence


@pytest.mark.parametrize(("on_duplicate", "expected"), [("existing", 1), ("none", 0), ("raise", 0)])
def test_results_that_only_their_first_caller_gets(on_duplicate, expected):
    sentences = found(policy(on_duplicate=on_duplicate), private_results=True)
    assert len(sentences) == expected
    for sentence in sentences:
        assert "rpc://" in sentence
        assert "a duplicate of mail.send one that never comes" in sentence
        assert "result_backend" in sentence


def test_without_any_policy_only_the_store_is_looked_at():
    facts = replace(SOUND, evicts="allkeys-lru", persists=False)
    assert len(found(facts=facts, visibility_timeout=1, private_results=True)) == 1


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({"writable": False}, "error"),
        ({"evicts": "allkeys-lru"}, "error"),
        ({"shared": False}, "warning"),
        ({"persists": False}, "warning"),
    ],
)
def test_what_lets_locks_go_is_an_error(facts, kind):
    tasks = {"t": [policy("once")]}
    (finding,) = suspicions(tasks, replace(SOUND, **facts), visibility_timeout=None, private_results=False)
    assert finding.kind == kind


def test_of_many_tasks_some_are_named():
    tasks = {f"t{number}": [policy()] for number in range(8)}
    (sentence,) = texts(suspicions(tasks, SOUND, visibility_timeout=None, private_results=True))
    assert "a duplicate of t0, t1, t2, t3, t4 and 3 more one that" in sentence
