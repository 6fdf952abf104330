"""Which rule decides for which task, and which decide for none."""

from __future__ import annotations

import re

import pytest

from celery_dedupe.core.coverage import RuleUse, coverage
from celery_dedupe.core.rules import Match, RuleSet


def uses(rules, tasks, own=()):
    """By the rule as written; ``own`` are tasks with an option of their own."""
    found = RuleSet(rules)
    resolved = {name: found.resolve(name) for name in tasks}
    resolved.update({name: Match(f"dedupe= of task {name}") for name in own})
    return {use.rule: use for use in coverage(found, resolved)}


def test_a_rule_has_the_tasks_that_it_decides_for():
    found = uses({"a.*": "once", "a.exact": None, "b": "once"}, ["a.one", "a.exact", "a.another", "b", "c"])
    assert found == {
        "a.*": RuleUse("a.*", ("a.another", "a.one")),
        "a.exact": RuleUse("a.exact", ("a.exact",)),
        "b": RuleUse("b", ("b",)),
    }
    assert [use.complaint for use in found.values()] == ["", "", ""]


def test_a_rule_that_matches_nothing_says_so():
    assert uses({"b.*": "once"}, ["a.one"])["b.*"].complaint == "matches no task"
    assert uses({"b": "once"}, ["b.c"])["b"].complaint == "matches no task"


@pytest.mark.parametrize("pattern", ["*", re.compile("celery")])
def test_so_does_one_that_could_match_only_celerys_own_tasks(pattern):
    (use,) = uses([(pattern, "once")], ["celery.chord"]).values()
    assert use.complaint == "matches no task"


def test_a_rule_is_shadowed_where_others_decide_for_all_it_matches():
    rules = {"a.one": "once", "a.*": "once", re.compile(r"a\.t"): "once", "a.t*": "once"}
    found = uses(rules, ["a.one", "a.two", "a.three"])
    assert found["re.compile('a\\\\.t')"].complaint == "shadowed by a.*"
    assert found["a.t*"].complaint == "shadowed by a.*"
    found = uses({"a.one": "once", "a.o*": "once", "a.*": "once"}, ["a.one", "a.only"])
    assert found["a.*"].complaint == "shadowed by a.one, a.o*"


def test_a_task_that_brings_its_own_shadows_too():
    found = uses({"a.*": "once"}, ["a.one"], own=["a.one"])
    assert found["a.*"].complaint == "shadowed by dedupe= of task a.one"
    assert uses({"a.*": "once"}, ["a.one", "a.two"], own=["a.one"])["a.*"].tasks == ("a.two",)


@pytest.mark.parametrize("name", ["a.one", "a.*"])
def test_of_two_rules_with_one_name_the_later_decides(name):
    rules = RuleSet([(name, {"scope": "first"}), (name, {"scope": "second"})])
    first, second = coverage(rules, {"a.one": rules.resolve("a.one")})
    assert rules.resolve("a.one").policies[0].scope == "second"
    twins = RuleSet([(name, "once"), (name, "once")])
    assert [use.tasks for use in coverage(twins, {"a.one": twins.resolve("a.one")})] == [(), ("a.one",)]
    assert (first.complaint, second.complaint) == (f"shadowed by {name}", "")
