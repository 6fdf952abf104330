"""Rules against Celery's own ``task_routes``."""

from __future__ import annotations

import re
from typing import Any

from celery.app.routes import MapRoute
from hypothesis import example, given
from hypothesis import strategies as st

from celery_dedupe.core.rules import RuleSet

words = st.lists(st.sampled_from(["a", "b", "c", ".", "celery", "celery."]), max_size=5).map("".join)
globs = st.lists(st.sampled_from(["a", "b", ".", "*", "?", "[ab]", "[!a]", "celery."]), max_size=5).map(
    "".join
)
patterns = st.sampled_from(["a", "a$", "", ".*b", "[ab][.]", "celery", "(?:a|b)+$"]).map(re.compile)
rule_lists = st.lists(words | globs | patterns, max_size=8)


@given(rule_lists, st.lists(words, min_size=1, max_size=6))
@example(["a*", re.compile("a"), "a"], ["a", "ab"])
@example(["*", "celery.a"], ["celery.a", "celery.b"])
@example(["a*", "b", "a*"], ["ab"])
def test_agree_with_task_routes(names: list[Any], tasks: list[str]) -> None:
    """An exact name first, then the first pattern listed: whatever the mixture."""
    listed = [(name, {"scope": f"rule {index}"}) for index, name in enumerate(names)]
    rules, celerys = RuleSet(listed), MapRoute(listed)
    for task in tasks:
        expected = celerys(task)
        if task.startswith("celery.") and task not in names:
            expected = None
        found = [{"scope": policy.scope} for policy in rules.resolve(task).policies]
        assert found == ([expected] if expected else [])
