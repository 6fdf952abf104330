"""Rules: which speaks for a task, and what a bad set of them is told."""

from __future__ import annotations

import re
from typing import Any

import pytest

from celery_dedupe.core.policy import Policy
from celery_dedupe.core.rules import Match, RuleSet
from celery_dedupe.errors import ConfigurationError


def scope(word: str) -> dict[str, str]:
    return {"scope": word}


def chosen(rules: RuleSet, task: str) -> str | None:
    policies = rules.resolve(task).policies
    return policies[0].scope if policies else None


class TestMatching:
    def test_exact_beats_an_earlier_glob(self) -> None:
        rules = RuleSet({"a.*": scope("glob"), "a.b": scope("exact")})
        assert chosen(rules, "a.b") == "exact"
        assert chosen(rules, "a.c") == "glob"

    def test_the_first_listed_pattern_decides(self) -> None:
        rules = RuleSet([(re.compile("a[.]b"), scope("regex")), ("a.*", scope("glob")), ("*", scope("all"))])
        assert chosen(rules, "a.b.c") == "regex"
        assert chosen(rules, "a.c") == "glob"
        assert chosen(rules, "b") == "all"

    def test_a_glob_matches_the_whole_name_and_a_pattern_its_start(self) -> None:
        rules = RuleSet({"a*z": scope("glob"), re.compile("q"): scope("regex")})
        assert chosen(rules, "a.z.y") is None
        assert chosen(rules, "q.anything") == "regex"
        assert chosen(rules, "x.q") is None

    @pytest.mark.parametrize("name", ["a.?", "a.[bc]"])
    def test_only_a_star_makes_a_glob(self, name: str) -> None:
        rules = RuleSet({name: scope("exact")})
        assert chosen(rules, name) == "exact"
        assert chosen(rules, "a.b") is None

    def test_a_rule_may_leave_a_task_alone(self) -> None:
        rules = RuleSet({"a.b": None, "a.c*": False, "a.*": "once"})
        assert rules.resolve("a.b") == Match("a.b", ())
        assert rules.resolve("a.cd") == Match("a.c*", ())
        assert rules.resolve("a.d").policies == (Policy(lock="once"),)

    def test_celerys_own_tasks_are_reached_by_exact_name_only(self) -> None:
        rules = RuleSet({"*": "once", re.compile(".*"): "once", "celery.backend_cleanup": scope("mine")})
        assert rules.resolve("celery.chord_unlock") == Match(None, ())
        assert chosen(rules, "celery.backend_cleanup") == "mine"
        assert rules.resolve("celery_app.task").policies
        assert rules.resolve("proj.celery.task").policies

    def test_no_rule(self) -> None:
        assert RuleSet({}).resolve("a") == Match(None, ())
        assert RuleSet({"a": "once"}).resolve("b") == Match(None, ())

    def test_says_which_rule(self) -> None:
        pattern = re.compile("crawl[.]")
        rules = RuleSet({"a.b": "once", "a.*": "once", pattern: "once"})
        assert [rules.resolve(name).rule for name in ("a.b", "a.c", "crawl.x")] == [
            "a.b",
            "a.*",
            repr(pattern),
        ]
        assert repr(rules) == f"RuleSet(a.b, a.*, {pattern!r})"

    def test_a_name_is_looked_up_once(self) -> None:
        asked: list[str] = []

        class Name(str):
            __slots__ = ()

            def startswith(self, *args: Any) -> bool:
                asked.append(self)
                return super().startswith(*args)

        rules = RuleSet({"*": "once"})
        assert rules.resolve(Name("a")) is rules.resolve(Name("a"))
        assert asked == ["a"]

    def test_policies_get_defaults_and_names(self) -> None:
        rules = RuleSet({"a": "mine", "b": {"lease": 3}}, defaults={"lease": 7}, named={"mine": {"key": []}})
        assert rules.resolve("a").policies == (Policy(key=[], lease=7),)
        assert rules.resolve("b").policies == (Policy(lease=3),)


class TestMistakes:
    @pytest.mark.parametrize(
        ("rules", "says"),
        [
            ("a.*", r"^dedupe_rules is of type str; write a dict of task names or globs to policies$"),
            (7, r"^dedupe_rules is of type int; "),
            ([("a.*", "once", 3)], r"^dedupe_rules is of type list; "),
            (["once"], r"^dedupe_rules is of type list; "),
            (
                {3: "once"},
                r"^dedupe_rules\[3\]: 3 is no rule's name; write a task's name, a glob or a text pattern",
            ),
            ({re.compile(b"a"): "once"}, r"is no rule's name"),
            (
                {"a.*": "onse"},
                r"^dedupe_rules\['a\.\*'\]: there is no lock or policy 'onse'; did you mean 'once'\?",
            ),
            ({re.compile("a"): "x"}, r"^dedupe_rules\[re\.compile\('a'\)\]: there is no lock or policy 'x'"),
            (
                {"a.*": {"rate": "10/min"}},
                r"^dedupe_rules\['a\.\*'\]: rate '10/min' is no rate: write \"10/m\"",
            ),
        ],
    )
    def test_show_when_the_rules_are_read(self, rules: object, says: str) -> None:
        with pytest.raises(ConfigurationError, match=says):
            RuleSet(rules)

    def test_name_the_place_they_were_given(self) -> None:
        with pytest.raises(ConfigurationError, match=r"^Dedupe\(app, rules=...\)\['a'\]: there is no"):
            RuleSet({"a": "x"}, where="Dedupe(app, rules=...)")
