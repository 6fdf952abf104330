"""``dedupe rules``."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.usefixtures("only_own_tasks")

RULES = {
    "pay.*": {"lock": "once", "key": "{value}", "keep": "30d"},
    "crawl": ["until_started", {"lock": "while_running", "limit": 4}],
    "crawl.page": None,
    "crawl.*": "once",
    "pay.card": "once",
    "nobody.*": "once",
}
TEXT = """\
TASK        RULE                 LOCK            KEY            OTHER FIELDS
crawl       crawl                until_started   all arguments  -
                                 while_running   all arguments  limit 4
crawl.page  crawl.page           -               -              left alone
own         dedupe= of task own  until_finished  all arguments  lease 5m
pay.cash    pay.*                once            {value}        keep 30d

Rules that count for no task: 3
  crawl.*: shadowed by crawl.page
  pay.card: matches no task
  nobody.*: matches no task

Tasks that no rule reaches: 1, and 9 of Celery's own
  free
"""


@pytest.fixture
def app(local_app):
    a = local_app(RULES)
    for name in ("crawl", "crawl.page", "pay.cash", "free"):
        a.task(name=name)
    a.task(name="own", dedupe={"lock": "until_finished", "lease": "5m"})
    return a.app


def test_a_person_sees_every_task_and_every_rule(dedupe_command, app):
    result = dedupe_command(app, "rules")
    assert (result.exit_code, result.output) == (0, TEXT)


def test_a_program_gets_all_of_it(dedupe_command, app):
    found = json.loads(dedupe_command(app, "rules", "--json").output)
    assert found["mode"] == "enforce"
    tasks = {task["task"]: task for task in found["tasks"]}
    assert tasks.keys() == set(app.tasks)
    assert tasks["free"] == {"task": "free", "rule": None, "policies": []}
    assert tasks["crawl.page"] == {"task": "crawl.page", "rule": "crawl.page", "policies": []}
    (policy,) = tasks["pay.cash"]["policies"]
    assert (policy["lock"], policy["keep"], policy["key"]) == ("once", 30 * 86400, "{value}")
    assert [policy["lock"] for policy in tasks["crawl"]["policies"]] == ["until_started", "while_running"]
    assert [(rule["rule"], rule["tasks"], rule["complaint"]) for rule in found["rules"]] == [
        ("pay.*", ["pay.cash"], None),
        ("crawl", ["crawl"], None),
        ("crawl.page", ["crawl.page"], None),
        ("crawl.*", [], "shadowed by crawl.page"),
        ("pay.card", [], "matches no task"),
        ("nobody.*", [], "matches no task"),
    ]
    assert "free" in found["unreached"]
    assert "celery.chord" in found["unreached"]
    assert "crawl.page" not in found["unreached"]


def test_without_any_rule(dedupe_command, local_app):
    a = local_app()
    a.task()
    assert dedupe_command(a.app, "rules").output == (
        "\nTasks that no rule reaches: 1, and 9 of Celery's own\n  t\n"
    )


def test_in_mode_off_it_says_what_would_count(dedupe_command, local_app):
    a = local_app({"t": "once"}, mode="off")
    a.task()
    output = dedupe_command(a.app, "rules").output
    assert output.startswith("dedupe_mode is 'off': no rule counts. If it were on:\n\nTASK")
    assert "t     t     once" in output
    assert json.loads(dedupe_command(a.app, "rules", "--json").output)["mode"] == "off"


def test_it_asks_no_store(dedupe_command, local_app):
    a = local_app({"t": "once"})
    a.task()
    a.store.down = True
    assert dedupe_command(a.app, "rules").exit_code == 0
    assert a.store.calls == []


def test_a_rule_that_does_not_fit_its_task_is_told(dedupe_command, local_app):
    a = local_app({"t": {"lock": "once", "key": ["nothing_like_it"]}})
    a.task()
    result = dedupe_command(a.app, "rules")
    assert result.exit_code == 2
    assert "nothing_like_it" in result.output
