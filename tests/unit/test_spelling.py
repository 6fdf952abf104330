"""Policies as programs and people read them, and rules as one digest."""

from __future__ import annotations

import json
import re

import pytest

from celery_dedupe import Policy
from celery_dedupe.core.durations import about, seconds, spoken
from celery_dedupe.core.locks import LOCKS
from celery_dedupe.core.policy import parse_policies
from celery_dedupe.core.rules import RuleSet
from celery_dedupe.core.spelling import digest, said, said_key, spelled, unusual


def of_order(order_id): ...


@pytest.mark.parametrize(
    ("duration", "words"),
    [
        (0, "0s"), (0.0004, "0s"), (0.5, "500ms"), (1, "1s"), (90, "1m 30s"), (3600, "1h"), (604_800, "7d"),
        (90_061.5, "1d 1h 1m 1s 500ms"), (-3, "0s"),
    ],
)  # fmt: skip
def test_a_duration_is_said_as_it_is_written(duration, words):
    assert spoken(duration) == words


@pytest.mark.parametrize("word", ["500ms", "90s", "15m", "2h", "7d"])
def test_what_is_said_can_be_read(word):
    assert sum(map(seconds, spoken(seconds(word)).split())) == seconds(word)


def test_an_age_is_said_in_its_largest_units():
    assert about(90_061.5) == "1d 1h"
    assert about(3601) == "1h 1s"
    assert (about(59.9), about(0.9), about(-0.9)) == ("59s", "0s", "0s")


@pytest.mark.parametrize("lock", LOCKS)
def test_a_policy_that_is_spelled_makes_the_policy(lock):
    fields = {"period": "10m"} if lock == "until_expired" else {}
    policy = Policy(lock=lock, key=["a", "b"], scope="s", on_duplicate="none", **fields)
    assert parse_policies(json.loads(json.dumps(spelled(policy))), where="here") == (policy,)


def test_only_fields_of_the_lock_are_spelled():
    assert "lease" not in spelled(Policy(lock="until_started"))
    assert "period" not in spelled(Policy(lock="once"))
    assert spelled(Policy(lock="once", keep=None))["keep"] is None


@pytest.mark.parametrize(
    ("key", "plain", "words"),
    [
        (None, None, "all arguments"),
        ([], [], "the name alone"),
        (["a", "b"], ["a", "b"], "a, b"),
        ("charge:{order_id}", "charge:{order_id}", "charge:{order_id}"),
        ("os.path.join", "os.path.join", "os.path.join"),
        (of_order, f"{__name__}:of_order", f"{__name__}:of_order"),
    ],
)
def test_every_kind_of_key_is_said(key, plain, words):
    (policy,) = parse_policies({"key": key}, where="here")
    assert spelled(policy)["key"] == plain
    assert said_key(policy) == words


def test_fields_are_said_with_their_durations():
    policy = Policy(lock="once", keep=None, lease="90s", params=["a", "b"])
    assert said(policy, ["keep", "lease", "limit", "params"]) == (
        "keep for ever, lease 1m 30s, limit 1, params a, b"
    )
    assert said(policy, ["period", "scope"]) == "", "it has no such field, or it is not set"


def test_what_is_unusual_is_what_the_rule_had_to_say():
    assert unusual(Policy(lock="once", key=["a"])) == []
    assert unusual(Policy(lock="queue_and_run", lease="5m", on_conflict="skip")) == ["lease", "on_conflict"]


def test_rules_that_say_the_same_have_one_digest():
    rules = {"a.*": "once", re.compile("b"): {"lock": "until_started", "key": of_order}}
    same = {"a.*": {"lock": "once", "keep": "168h"}, re.compile("b"): rules[re.compile("b")]}
    assert digest(RuleSet(rules)) == digest(RuleSet(same))
    assert re.fullmatch("[0-9a-f]{12}", digest(RuleSet({})))


@pytest.mark.parametrize(
    "other",
    [
        {"a.*": "until_finished", "b": "once"},
        {"a.*": {"lock": "once", "keep": "8d"}, "b": "once"},
        {"b": "once", "a.*": "once"},
        {"a.*": "once", "b": ["once", "until_started"]},
        {"a.*": "once", "b": None},
        {"a.*": "once"},
        {},
    ],
)
def test_others_have_another(other):
    assert digest(RuleSet(other)) != digest(RuleSet({"a.*": "once", "b": "once"}))


def test_so_do_other_defaults():
    assert digest(RuleSet({"a": "once"}, defaults={"keep": "8d"})) != digest(RuleSet({"a": "once"}))
