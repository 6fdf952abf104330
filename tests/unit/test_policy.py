"""Policies: what rules and calls may write, what it comes to, and what each mistake is told."""

from __future__ import annotations

import dataclasses
import json
from datetime import timedelta
from typing import Any

import pytest

from celery_dedupe.core.durations import seconds
from celery_dedupe.core.keyspecs import Dotted, Field, Template, parse_key
from celery_dedupe.core.policy import LOCKS, Policy, overlay, parse_policies, portable
from celery_dedupe.errors import ConfigurationError

WHERE = "dedupe_rules['reports.*']"
NAMED = {
    "accounts": {"lock": "queue_and_run", "key": ["account_id"]},
    "both": ["until_started", {"lock": "while_running", "key": ["host"], "limit": 4}],
    "ready": Policy(lock="once", keep="30d"),
    "alone": None,
    "loop": {"lock": "pool"},
    "pool": {"lock": "loop"},
}


def parse(value: object, **context: Any) -> tuple[Policy, ...]:
    return parse_policies(value, where=WHERE, **{"named": NAMED, **context})


def message_of(value: object, **context: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        parse(value, **context)
    return str(caught.value)


def any_policy(lock: Any) -> Policy:
    return Policy(lock=lock, period="1h" if lock == "until_expired" else None)


class TestLocks:
    @pytest.mark.parametrize(
        ("name", "claims", "runs", "blocked_by", "remembers", "periodic", "on_conflict", "on_store_error"),
        [
            ("until_started", True, False, {"queued"}, False, False, "skip", "allow"),
            ("while_running", False, True, set(), False, False, "skip", "allow"),
            ("queue_and_run", True, True, {"queued"}, False, False, "wait", "allow"),
            ("until_finished", True, True, {"queued", "running"}, False, False, "skip", "allow"),
            ("until_expired", True, False, {"queued"}, False, True, "skip", "allow"),
            ("once", True, True, {"queued", "running", "done"}, True, False, "skip", "refuse"),
        ],
    )
    def test_traits(
        self,
        name: str,
        claims: bool,
        runs: bool,
        blocked_by: set[str],
        remembers: bool,
        periodic: bool,
        on_conflict: str,
        on_store_error: str,
    ) -> None:
        lock = LOCKS[name]
        assert (lock.claims, lock.runs, lock.remembers, lock.periodic) == (claims, runs, remembers, periodic)
        assert lock.publish_blocked_by == blocked_by
        assert (lock.on_conflict, lock.on_store_error) == (on_conflict, on_store_error)

    def test_there_are_six(self) -> None:
        assert len(LOCKS) == 6
        assert all(name == lock.name for name, lock in LOCKS.items())


class TestDurations:
    @pytest.mark.parametrize(
        ("written", "expected"),
        [
            (90, 90.0),
            (0.5, 0.5),
            (timedelta(hours=2), 7200.0),
            ("500ms", 0.5),
            ("90s", 90.0),
            ("15m", 900.0),
            ("1.5h", 5400.0),
            ("7d", 604800.0),
            (" 2 h ", 7200.0),
        ],
    )
    def test_spellings(self, written: Any, expected: float) -> None:
        assert seconds(written) == expected
        assert isinstance(seconds(written), float)

    @pytest.mark.parametrize(
        "written",
        ["5 parsecs", "", "h", "-5s", "1h30m", "1e3s", "٣s", None, [1], object(), b"5s", True, False],
    )
    def test_no_duration(self, written: Any) -> None:
        with pytest.raises(
            ValueError, match="is not a duration: write seconds, a timedelta, or a text such as"
        ):
            seconds(written)

    @pytest.mark.parametrize(
        "written",
        [
            0,
            0.0,
            -1,
            "0s",
            timedelta(0),
            timedelta(-1),
            float("nan"),
            float("inf"),
            10**400,
            "9" * 400 + "d",
            1e-9,
        ],
    )
    def test_out_of_range(self, written: Any) -> None:
        with pytest.raises(ValueError, match="must be a millisecond or more, and finite"):
            seconds(written)


class TestPolicy:
    def test_the_default_never_loses_a_change(self) -> None:
        policy = Policy()
        assert policy.lock == "queue_and_run"
        assert policy.traits is LOCKS["queue_and_run"]
        assert (policy.key, policy.scope, policy.params) == (None, None, None)
        assert (policy.queue_ttl, policy.lease, policy.wait_limit, policy.keep) == (3600, 60, 3600, 604800)
        assert (policy.period, policy.limit) == (None, 1)
        assert (policy.on_duplicate, policy.on_conflict, policy.on_store_error) == (
            "existing",
            "wait",
            "allow",
        )
        assert (policy.in_workflow, policy.on_lease_lost) == ("publish", "continue")

    def test_takes_what_a_dict_takes(self) -> None:
        written = Policy(lock="once", key="charge:{order_id}", keep="30d", lease=timedelta(minutes=2))
        assert (written,) == parse(
            {"lock": "once", "key": "charge:{order_id}", "keep": 2592000, "lease": "2m"}
        )

    @pytest.mark.parametrize("lock", LOCKS)
    def test_resolves_what_the_lock_decides(self, lock: Any) -> None:
        policy = any_policy(lock)
        assert (policy.on_conflict, policy.on_store_error) == (
            LOCKS[lock].on_conflict,
            LOCKS[lock].on_store_error,
        )

    @pytest.mark.parametrize("lock", LOCKS)
    def test_can_be_replaced_in_part(self, lock: Any) -> None:
        policy = any_policy(lock)
        changed = dataclasses.replace(policy, scope="shared")
        assert changed.scope == "shared"
        assert dataclasses.replace(changed, scope=None) == policy

    def test_is_a_value(self) -> None:
        assert hash(Policy(key=["a"])) == hash(Policy(key=["a"]))
        with pytest.raises(dataclasses.FrozenInstanceError):
            Policy().lock = "once"  # type: ignore[misc]

    def test_keep_none_is_for_ever(self) -> None:
        assert Policy(lock="once", keep=None).keep is None

    def test_errors_name_the_field(self) -> None:
        with pytest.raises(ConfigurationError, match=r"^Policy\(...\): keep '3 moons' is not a duration"):
            Policy(lock="once", keep="3 moons")
        with pytest.raises(ConfigurationError, match=r"^Policy\(...\): keep '3d' has no meaning with lock"):
            Policy(keep="3d")
        with pytest.raises(ConfigurationError, match=r"^Policy\(...\): lock 'until_expired' needs a period"):
            Policy(lock="until_expired")


class TestParsing:
    def test_a_name(self) -> None:
        assert parse("once") == (Policy(lock="once"),)

    @pytest.mark.parametrize("value", [None, False, [], [None]])
    def test_leave_alone(self, value: object) -> None:
        assert parse(value) == ()

    def test_a_dict_without_a_lock_is_the_default_lock(self) -> None:
        assert parse({"key": ["a"]}) == (Policy(key=["a"]),)

    def test_a_list_keeps_its_order(self) -> None:
        policies = parse(
            [{"lock": "until_started", "key": []}, "while_running", Policy(lock="once", scope="x")]
        )
        assert [policy.lock for policy in policies] == ["until_started", "while_running", "once"]

    def test_named_policies(self) -> None:
        assert parse("accounts") == (Policy(key=["account_id"]),)
        assert parse("ready") == (Policy(lock="once", keep="30d"),)
        assert parse("alone") == ()
        assert [policy.limit for policy in parse("both")] == [1, 4]

    def test_a_dict_builds_on_a_named_policy(self) -> None:
        assert parse({"lock": "accounts", "lease": 5}) == (Policy(key=["account_id"], lease=5),)
        assert [policy.lease for policy in parse({"lock": "both", "lease": 5})] == [60, 5]
        assert message_of({"lock": "both", "keep": 5}) == (
            f"{WHERE}: keep 5 has no meaning with lock 'until_started'; it is for once"
        )

    def test_policies_of_one_list_get_keys_of_their_own(self) -> None:
        policies = parse(
            [
                {"lock": "until_started", "key": ["a", "b"]},
                {"lock": "while_running", "key": ["b", "a"]},
                {"lock": "once", "key": ["b", "a"]},
                {"lock": "once", "key": ["b"]},
                {"lock": "once", "key": ["b"], "scope": "other"},
            ]
        )
        assert [policy.part for policy in policies] == ["", "1", "2", "", ""]

    def test_defaults_apply_where_they_suit_the_lock(self) -> None:
        defaults = {"queue_ttl": "2h", "limit": 3, "lease": 9, "keep": "1d", "on_conflict": "raise"}
        assert parse("while_running", defaults=defaults) == (
            Policy(lock="while_running", limit=3, lease=9, on_conflict="raise"),
        )
        assert parse("once", defaults=defaults) == (
            Policy(lock="once", queue_ttl="2h", lease=9, keep="1d", on_conflict="raise"),
        )
        assert parse("until_started", defaults=defaults) == (Policy(lock="until_started", queue_ttl="2h"),)
        assert parse({"lock": "once", "keep": None}, defaults=defaults)[0].keep is None

    def test_defaults_may_choose_the_lock(self) -> None:
        assert parse({"lease": 5}, defaults={"lock": "until_finished"})[0].lock == "until_finished"

    def test_defaults_leave_a_policy_object_alone(self) -> None:
        assert parse(Policy(), defaults={"lease": 5}) == (Policy(),)


class TestMistakes:
    """Each message names the place, the field, the value and the mend."""

    @pytest.mark.parametrize(
        ("value", "says"),
        [
            ({"limits": 2}, ": unknown field 'limits'; did you mean 'limit'? Known names: "),
            ({"keys": []}, ": unknown field 'keys'; did you mean 'key'? "),
            ({"policy": "once"}, ": unknown field 'policy'; "),
            ({3: 4}, ": unknown field 3; known names: "),
            ({"part": "1"}, ": unknown field 'part'; "),
            ({"rate": "10/m", "lock": "once"}, " has a lock and a rate; make them two policies of a list"),
            ({"rate": "10/m", "lease": 5}, ": lease 5 has no meaning with a rate; it is for while_running, "),
            ({"rate": "10/m", "wait_limit": 5}, ": wait_limit 5 has no meaning with a rate; "),
            ({"rate": "0/m"}, ": rate '0/m' is no rate: the number of starts must be a whole number of 1"),
            ({"rate": (1.5, 60)}, ": rate (1.5, 60) is no rate: the number of starts"),
            ({"rate": (1, 0)}, ": rate (1, 0) must be a millisecond or more"),
            ({"rate": "ten"}, ": rate 'ten' is no rate: write "),
            ({"rate": 10}, ": rate 10 is no rate: write "),
            ("unce", ": there is no lock or policy 'unce'; did you mean 'once'? "),
            ("acounts", ": there is no lock or policy 'acounts'; did you mean 'accounts'? "),
            ("loop", ": there is no lock or policy 'loop'; "),
            (
                {"lock": "untl_started"},
                ": there is no lock or policy 'untl_started'; did you mean 'until_started'?",
            ),
            ({"lock": "acounts"}, ": there is no lock or policy 'acounts'; did you mean 'accounts'? "),
            ({"lock": ["once"]}, ": lock ['once'] is not one of the choices"),
            ({"queue_ttl": "5 parsecs"}, ": queue_ttl '5 parsecs' is not a duration: write seconds, "),
            ({"lease": 0}, ": lease 0 must be a millisecond or more"),
            ({"lease": None}, ": lease None is not a duration"),
            ({"lock": "once", "keep": True}, ": keep True is not a duration"),
            (
                {"on_duplicate": "rais"},
                ": on_duplicate 'rais' is not one of the choices; did you mean 'raise'?",
            ),
            (
                {"on_conflict": "waits"},
                ": on_conflict 'waits' is not one of the choices; did you mean 'wait'?",
            ),
            (
                {"on_store_error": 1},
                ": on_store_error 1 is not one of the choices; known names: allow, refuse",
            ),
            (
                {"in_workflow": None},
                ": in_workflow None is not one of the choices; known names: drop, publish",
            ),
            ({"on_lease_lost": "kill"}, ": on_lease_lost 'kill' is not one of the choices; "),
            ({"limit": 0}, ": limit 0 is no limit: write a whole number of 1 or more"),
            ({"limit": True}, ": limit True is no limit"),
            ({"limit": 1.5}, ": limit 1.5 is no limit"),
            ({"scope": ""}, ": scope '' is no scope: write a word"),
            ({"scope": 3}, ": scope 3 is no scope"),
            ({"params": "a"}, ": params 'a' is no list of argument names"),
            ({"params": ["a", 1]}, ": params ['a', 1] has 1: a key list holds plain argument names"),
            (
                True,
                ": True is no policy; write a policy's name, a dict of fields, a Policy, a list of them, or ",
            ),
            (7, ": 7 is no policy; "),
            (["once", {"lock": "onc"}], "[1]: there is no lock or policy 'onc'; did you mean 'once'?"),
        ],
    )
    def test_bad_values(self, value: object, says: str) -> None:
        assert message_of(value).startswith(WHERE)
        assert says in message_of(value)

    @pytest.mark.parametrize(
        ("value", "says"),
        [
            ({"lock": "until_expired"}, "lock 'until_expired' needs a period, such as period='1h'"),
            ({"lock": "until_expired", "period": None}, "lock 'until_expired' needs a period"),
            (
                {"period": "1h"},
                "period '1h' has no meaning with lock 'queue_and_run'; it is for until_expired",
            ),
            (
                {"lock": "until_finished", "keep": "1d"},
                "keep '1d' has no meaning with lock 'until_finished'; it is for once",
            ),
            ({"lock": "until_finished", "keep": "7d"}, "keep '7d' has no meaning"),
            (
                {"lock": "while_running", "queue_ttl": "1h"},
                "queue_ttl '1h' has no meaning with lock 'while_running'",
            ),
            ({"lock": "until_expired", "period": 5, "queue_ttl": 5}, "queue_ttl 5 has no meaning"),
            (
                {"lock": "once", "limit": 2},
                "limit 2 has no meaning with lock 'once'; it is for while_running, queue_and_run",
            ),
            ({"lock": "until_finished", "limit": 2}, "limit 2 has no meaning with lock 'until_finished'"),
            ({"lock": "until_started", "limit": 1}, "limit 1 has no meaning with lock 'until_started'"),
            (
                {"lock": "until_started", "lease": "60s"},
                "lease '60s' has no meaning with lock 'until_started'",
            ),
            ({"lock": "until_started", "on_conflict": "skip"}, "on_conflict 'skip' has no meaning"),
            ({"lock": "until_expired", "period": 5, "wait_limit": 5}, "wait_limit 5 has no meaning"),
            ({"lock": "until_started", "max_deliveries": 5}, "max_deliveries 5 has no meaning"),
            ({"max_deliveries": 0}, "max_deliveries 0 is no limit"),
            ({"observe": "yes"}, "observe 'yes' is neither True nor False"),
            (
                {"lock": "until_started", "on_lease_lost": "continue"},
                "on_lease_lost 'continue' has no meaning",
            ),
        ],
    )
    def test_contradictions(self, value: object, says: str) -> None:
        assert f"{WHERE}: {says}" in message_of(value)

    def test_a_contradiction_of_a_named_policy_names_it(self) -> None:
        message = message_of("mine", named={"mine": {"period": 3}})
        assert message.startswith(f"{WHERE}: dedupe_policies['mine']: period 3 has no meaning")

    def test_defaults_are_checked(self) -> None:
        assert message_of("once", defaults={"leese": 3}).startswith("dedupe_defaults: unknown field 'leese'")

    @pytest.mark.parametrize("lock", ["once", "until_finished", "until_started", "while_running"])
    def test_a_limit_of_one_is_no_contradiction(self, lock: str) -> None:
        if LOCKS[lock].runs:
            assert parse({"lock": lock, "limit": 1})[0].limit == 1


class TestKeys:
    def test_names(self) -> None:
        assert parse_key(["a", "b"]) == ("a", "b")
        assert parse_key([]) == ()
        assert parse_key(None) is None

    def test_a_template(self) -> None:
        spec = parse_key("charge:{order_id}/{order.lines.0}{{x}}")
        assert isinstance(spec, Template)
        assert spec.parts == ("charge:", Field("order_id"), "/", Field("order", ("lines", "0")), "{x}")

    @pytest.mark.parametrize("path", ["proj.keys:account", "proj.keys.account", "keys:Account.of"])
    def test_a_dotted_path(self, path: str) -> None:
        assert parse_key(path) == Dotted(path)

    def test_a_callable(self) -> None:
        assert parse_key(len) is len

    @pytest.mark.parametrize(
        ("key", "says"),
        [
            (
                "{a.__class__}",
                "key '{a.__class__}' has the field {a.__class__}: a field is an argument's name, then",
            ),
            ("{a._b.__dict__}", "has the field {a._b.__dict__}"),
            ("{a!r}", "key '{a!r}' formats the field {a}, which a key cannot"),
            ("{a:>10}", "formats the field {a}"),
            ("{a:{b}}", "formats the field {a}"),
            ("{}", "has the field {}"),
            ("{0}", "has the field {0}"),
            ("{a[0]}", "has the field {a[0]}"),
            ("{a.}", "has the field {a.}"),
            ("{a b}", "has the field {a b}"),
            ("{a", "has unbalanced braces"),
            ("a}", "has unbalanced braces"),
            ("account_id", "key 'account_id' is no key: write ['account_id'] for an argument's name"),
            ("charge 7", "key 'charge 7' is no key"),
            ("", "key '' is no key"),
            (["a", "a"], "key ['a', 'a'] names 'a' twice"),
            (["a.b"], "has 'a.b': a key list holds plain argument names"),
            ([1], "has 1: a key list holds plain argument names"),
            (7, "key 7 is no key: write a list of argument names"),
            ({"a": 1}, "is no key: write a list of argument names"),
        ],
    )
    def test_mistakes(self, key: object, says: str) -> None:
        """Case 48: an attribute access or a misspelt template is refused when the rule is read."""
        assert says in message_of({"key": key})

    def test_a_path_to_nothing(self) -> None:
        with pytest.raises(ValueError, match=r"cannot be imported \(ModuleNotFoundError: "):
            Dotted("no_such_module:key").load()
        with pytest.raises(ValueError, match=r"cannot be imported \(AttributeError: "):
            Dotted("json.no_such_key").load()
        with pytest.raises(ValueError, match="is not a function but a str"):
            Dotted("json:__name__").load()
        assert Dotted("json:dumps").load() is Dotted("json.dumps").load() is json.dumps


class TestOverlay:
    BOTH = parse("both")

    def lay(self, policies: tuple[Policy, ...], value: object, **context: Any) -> tuple[Policy, ...]:
        return overlay(policies, value, where="dedupe= of a call", **{"named": NAMED, **context})

    @pytest.mark.parametrize("value", [None, False])
    def test_leave_this_call_alone(self, value: object) -> None:
        assert self.lay(self.BOTH, value) == ()

    def test_fields_are_laid_over_each_policy_they_suit(self) -> None:
        started, running = self.lay(self.BOTH, {"lease": 5, "on_duplicate": "raise"})
        assert (started.lock, started.lease, started.on_duplicate) == ("until_started", 60, "raise")
        assert (running.lock, running.lease, running.on_duplicate) == ("while_running", 5, "raise")
        assert (running.key, running.limit) == (("host",), 4)

    def test_fields_over_no_policy_make_one(self) -> None:
        assert self.lay((), {"lease": 5}, defaults={"lock": "until_finished"}) == (
            Policy(lock="until_finished", lease=5),
        )

    def test_another_lock_brings_its_own_choices(self) -> None:
        assert self.lay((Policy(queue_ttl=9, lease=5),), {"lock": "once"}) == (
            Policy(lock="once", queue_ttl=9, lease=5),
        )
        assert self.lay((Policy(lock="until_expired", period=9),), {"lock": "while_running"}) == (
            Policy(lock="while_running"),
        )
        written = Policy(on_conflict="raise", on_store_error="refuse")
        assert self.lay((written,), {"lock": "until_finished"}) == (
            Policy(lock="until_finished", on_conflict="raise", on_store_error="refuse"),
        )

    def test_a_field_that_suits_none_is_an_error(self) -> None:
        with pytest.raises(ConfigurationError, match=r"^dedupe= of a call: keep 5 has no meaning with lock"):
            self.lay(self.BOTH, {"keep": 5})

    def test_anything_else_replaces(self) -> None:
        assert self.lay(self.BOTH, "once") == (Policy(lock="once"),)
        assert self.lay(self.BOTH, Policy(lock="once")) == (Policy(lock="once"),)
        assert self.lay(self.BOTH, ["once"]) == (Policy(lock="once"),)
        assert self.lay(self.BOTH, {"lock": "accounts"}) == (Policy(key=["account_id"]),)

    @pytest.mark.parametrize("text", ["order 7", "proj.keys.account", "a:b", "7", ""])
    def test_a_key_without_braces_is_a_text(self, text: str) -> None:
        (policy,) = self.lay((Policy(key=["a"]),), {"key": text})
        assert isinstance(policy.key, Template)
        assert policy.key.parts == ((text,) if text else ())

    def test_one_key_for_several_policies_makes_them_no_rivals(self) -> None:
        assert [policy.part for policy in self.lay(self.BOTH, {"key": "x"})] == ["", "1"]

    def test_the_base_of_a_named_policy_keeps_its_own_reading_of_keys(self) -> None:
        named = {"mine": {"key": "proj.keys:account"}}
        assert self.lay((), {"lock": "mine", "lease": 5}, named=named)[0].key == Dotted("proj.keys:account")

    @pytest.mark.parametrize("value", [{"lock": ["once"]}, {"lock": "onec"}, {"lock": None}])
    def test_a_bad_lock(self, value: object) -> None:
        with pytest.raises(ConfigurationError, match=r"^dedupe= of a call: (there is no )?lock "):
            self.lay(self.BOTH, value)


class TestPortable:
    @pytest.mark.parametrize(
        "value",
        [
            None,
            False,
            "once",
            {"key": "order 7"},
            {"key": "a:{b}", "lease": timedelta(minutes=2), "wait_limit": "2h"},
            {"key": ("a", "b"), "scope": "x"},
            ["once", {"lock": "while_running", "key": [], "limit": 3}],
            Policy(lock="once", key="a:{b}", keep=None, params=["b"]),
            Policy(lock="until_expired", period=timedelta(hours=1), scope="x", on_duplicate="none"),
            [Policy(lock="while_running", limit=2), "until_started"],
        ],
    )
    def test_means_the_same_at_the_other_end(self, value: object) -> None:
        sent = json.loads(json.dumps(portable(value)))
        base = (Policy(lock="while_running", key=["host"], limit=2, lease=9),)
        other = {"lease": 1, "queue_ttl": 2, "on_duplicate": "raise", "in_workflow": "drop"}
        given = overlay(base, value, where="here")
        assert overlay(base, sent, where="there") == given
        if isinstance(value, Policy):
            assert overlay(base, sent, where="there", defaults=other) == given

    @pytest.mark.parametrize("key", [len, Dotted("json:dumps")])
    def test_a_key_function_stays_behind(self, key: Any) -> None:
        assert "key" not in portable(Policy(lock="once", key=key))[0]
        assert portable({"key": key, "lease": 5}) == {"lease": 5}
