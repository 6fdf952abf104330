"""Rates: how they are written, what a function of one is asked, how a store keeps them."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dedupe import ConfigurationError, Policy
from celery_dedupe.core.call import Call
from celery_dedupe.core.keys import check_policy, make_key
from celery_dedupe.core.keyspecs import Dotted
from celery_dedupe.core.policy import overlay, parse_policies, portable
from celery_dedupe.core.rates import Rate, check_rate, kept, parse_rate, rate_of

CALL = Call("crawl.page", "id", ("example.org",), {"depth": 3}, None)
TEN = Rate(10, 60.0)


def by_task(task: str) -> str:
    return {"crawl.page": "10/m"}[task]


def by_customer(args: Any, kwargs: Any, key: str) -> tuple[int, int]:
    assert (args, kwargs, key) == (("example.org",), {"depth": 3}, "dedupe:k")
    return 10, 60


def by_all(**offered: Any) -> list[object]:
    assert offered.keys() == {"task", "args", "kwargs", "key"}
    return [10, "1m"]


def asks_too_much(customer: str) -> str:
    return "10/m"


def fails() -> str:
    raise LookupError("the customer is unknown")


class TestWritten:
    @pytest.mark.parametrize(
        ("value", "starts", "seconds"),
        [
            ("10/m", 10, 60),
            ("1/s", 1, 1),
            ("5/h", 5, 3600),
            ("3/d", 3, 86400),
            ("2/60s", 2, 60),
            (" 2 / 1.5 h ", 2, 5400),
            ("7/250ms", 7, 0.25),
            ((2, 60), 2, 60),
            ([2, "1m"], 2, 60),
            ((1, timedelta(minutes=2)), 1, 120),
            (Rate(2, 60.0), 2, 60),
        ],
    )
    def test_as_a_value(self, value: Any, starts: int, seconds: float) -> None:
        assert parse_rate(value) == Rate(starts, float(seconds))

    @pytest.mark.parametrize("value", ["tests.unit.test_rates.by_task", "tests.unit.test_rates:by_task"])
    def test_as_a_dotted_path(self, value: str) -> None:
        assert parse_rate(value) == Dotted(value)
        assert rate_of(parse_rate(value), CALL, "dedupe:k") == TEN

    @pytest.mark.parametrize(
        "value",
        ["", "10", "10/min", "-1/m", "1.5/m", "m/10", "10/m/s", 10, None, (1,), (1, 2, 3), {}, ("1", 60)],
    )
    def test_no_rate(self, value: Any) -> None:
        with pytest.raises(ValueError, match=r"^is no rate: "):
            parse_rate(value)

    @pytest.mark.parametrize("value", ["0/m", (0, 60), (True, 60), (2.0, 60)])
    def test_no_number_of_starts(self, value: Any) -> None:
        with pytest.raises(ValueError, match="a whole number of 1 or more"):
            parse_rate(value)


class TestFunction:
    @pytest.mark.parametrize(
        "function", [by_task, by_customer, by_all, lambda: TEN, functools.partial(lambda x, task: x, "10/m")]
    )
    def test_it_gets_what_it_names(self, function: Any) -> None:
        check_rate(function, "here")
        assert rate_of(function, CALL, "dedupe:k") == TEN

    @pytest.mark.parametrize("answer", [None, "soon", 10, (0, 1), lambda: "10/m"])
    def test_what_it_returns_must_be_a_rate(self, answer: Any) -> None:
        def gives() -> Any:
            return answer

        with pytest.raises(ConfigurationError) as caught:
            rate_of(gives, CALL, "k")
        assert str(caught.value).startswith(
            f"the rule of 'crawl.page': rate {gives.__qualname__!r} returned "
        )

    def test_what_it_raises_goes_through(self) -> None:
        with pytest.raises(LookupError, match="unknown"):
            rate_of(fails, CALL, "k")

    @pytest.mark.parametrize("spec", [asks_too_much, Dotted("tests.unit.test_rates.asks_too_much")])
    def test_it_cannot_ask_for_anything_else(self, spec: Any) -> None:
        says = "^here: rate '.*asks_too_much' asks for 'customer'; it may have task, args, kwargs, key$"
        with pytest.raises(ConfigurationError, match=says):
            check_rate(spec, "here")

    def test_a_path_that_leads_nowhere_shows_when_a_worker_starts(self) -> None:
        policy = Policy(rate="tests.unit.test_rates.nothing")
        with pytest.raises(
            ConfigurationError, match=r"^here: rate 'tests\.unit\.test_rates\.nothing' cannot be"
        ):
            check_policy(policy, None, "here")


class TestKept:
    @given(st.integers(1, 10**6), st.floats(0.001, 10**6))
    def test_a_store_keeps_no_more_than_the_rate_and_has_room_for_it(
        self, starts: int, seconds: float
    ) -> None:
        most, window = kept(Rate(starts, seconds))
        assert 1 <= most <= 1000
        windows = seconds * 1e6 / window
        assert windows * most <= starts
        assert starts <= 1000 or windows * most >= 0.4 * starts

    @pytest.mark.parametrize(
        ("rate", "expected"),
        [
            (Rate(20, 1.0), (20, 1_050_001)),
            (Rate(10, 60.0), (10, 60_500_001)),
            (Rate(100_000, 3600.0), (1000, 36_500_001)),
        ],
    )
    def test_its_window_is_a_little_longer(self, rate: Rate, expected: tuple[int, int]) -> None:
        assert kept(rate) == expected


class TestPolicy:
    def test_a_rate_has_no_lock(self) -> None:
        (policy,) = parse_policies({"rate": "10/m", "key": ["host"]}, where="here")
        assert (policy.lock, policy.rate, policy.on_conflict, policy.on_store_error) == (
            None,
            TEN,
            "wait",
            "allow",
        )
        assert (policy.traits.claims, policy.traits.runs, policy.traits.paced) == (False, False, True)

    def test_the_object_says_the_same(self) -> None:
        assert Policy(rate="10/m", on_conflict="raise").rate == TEN
        with pytest.raises(ConfigurationError, match="lock 'once' has no meaning with a rate"):
            Policy(rate="10/m", lock="once")
        with pytest.raises(ConfigurationError, match="lease 5 has no meaning with a rate"):
            Policy(rate="10/m", lease=5)

    def test_defaults_of_locks_are_left_out(self) -> None:
        defaults = {"lock": "once", "lease": "5m", "on_store_error": "refuse"}
        (policy,) = parse_policies({"rate": "10/m"}, where="here", defaults=defaults)
        assert (policy.lock, policy.on_store_error) == (None, "refuse")

    def test_a_default_rate_is_for_what_has_no_lock(self) -> None:
        defaults = {"rate": "10/m"}
        (rated,) = parse_policies({"key": []}, where="here", defaults=defaults)
        (lock,) = parse_policies("once", where="here", defaults=defaults)
        assert (rated.rate, lock.rate, lock.lock) == (TEN, None, "once")

    def test_a_named_policy_may_be_a_rate(self) -> None:
        named = {"api": {"rate": "10/m", "scope": "api", "key": []}}
        (policy,) = parse_policies({"lock": "api", "on_conflict": "skip"}, where="here", named=named)
        assert (policy.rate, policy.scope, policy.on_conflict) == (TEN, "api", "skip")

    def test_locks_and_rates_of_a_list_have_keys_of_their_own_whatever_is_beside_them(self) -> None:
        lock, rate = {"lock": "while_running", "key": []}, {"rate": "10/m", "key": []}

        def keys(*some: Any) -> list[str]:
            return [make_key(CALL, policy, prefix="p").text for policy in parse_policies(some, where="here")]

        assert keys(lock, rate) == [*keys(lock), *keys(rate)] == keys(rate, lock)[::-1]
        assert len({*keys(lock, rate, rate)}) == 3

    def test_a_call_may_bring_another_rate(self) -> None:
        policies = parse_policies([{"lock": "once"}, {"rate": "10/m"}], where="here")
        lock, rate = overlay(policies, {"rate": "1/s"}, where="call")
        assert (lock, rate.rate) == (policies[0], Rate(1, 1.0))
        both = overlay(policies, {"lock": "until_finished"}, where="call")
        assert (both[0].lock, both[1]) == ("until_finished", policies[1])
        with pytest.raises(ConfigurationError, match="call: rate '1/s' has no meaning with lock 'once'"):
            overlay(policies[:1], {"rate": "1/s"}, where="call")

    @pytest.mark.parametrize(
        ("value", "travels"),
        [
            ({"rate": "10/m"}, {"rate": "10/m"}),
            ({"rate": (10, timedelta(minutes=1))}, {"rate": [10, 60.0]}),
            ({"rate": "a.b"}, {"rate": "a.b"}),
            ({"rate": Dotted("a.b")}, {"rate": "a.b"}),
        ],
    )
    def test_it_travels_with_a_call(self, value: Any, travels: Any) -> None:
        assert portable(value) == travels

    def test_so_does_the_object(self) -> None:
        policy = parse_policies(Policy(rate="10/m", key=["host"]), where="here")[0]
        assert overlay((), portable(policy), where="there") == (policy,)

    def test_a_function_does_not(self) -> None:
        for value in ({"rate": by_task}, Policy(rate=by_task)):
            with pytest.raises(ConfigurationError, match="write its dotted path"):
                portable(value)
