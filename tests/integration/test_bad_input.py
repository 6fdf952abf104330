"""A bad setting: a worker refuses to start in one line, a publisher is told at its first publish."""

from __future__ import annotations

import re

import pytest

from celery_dedupe import ConfigurationError
from tests.harness.servers import BACKEND, BROKER

pytestmark = pytest.mark.integration


def rule(value):
    return {"dedupe_rules": {"jobs.quick": value}}


# What is set; then what the line names: the setting, the rule, the value, the mend.
BAD = {
    "unknown setting": ({"dedupe_rule": {}}, ["dedupe_rule ", "did you mean 'dedupe_rules'"]),
    "unknown setting of Dedupe": (
        {"dedupe_modes": "off"},
        ["dedupe_modes", "did you mean 'dedupe_mode'"],
    ),
    "unknown mode": ({"dedupe_mode": "enforced"}, ["dedupe_mode", "'enforced'", "did you mean 'enforce'"]),
    "unknown lock": (
        rule("until_finshed"),
        ["dedupe_rules['jobs.quick']", "'until_finshed'", "did you mean 'until_finished'"],
    ),
    "unknown lock in a list": (
        rule(["until_started", {"lock": "onces"}]),
        ["dedupe_rules['jobs.quick'][1]", "'onces'", "did you mean 'once'"],
    ),
    "unknown field": (
        rule({"lock": "until_finished", "on_duplicates": "none"}),
        ["dedupe_rules['jobs.quick']", "'on_duplicates'", "did you mean 'on_duplicate'"],
    ),
    "unknown choice": (
        rule({"lock": "until_finished", "on_duplicate": "nothing"}),
        ["dedupe_rules['jobs.quick']", "on_duplicate", "'nothing'", "existing, none, raise"],
    ),
    "no duration": (
        rule({"queue_ttl": "5 parsecs"}),
        ["dedupe_rules['jobs.quick']", "queue_ttl", "'5 parsecs'", '"15m"'],
    ),
    "no limit": (
        rule({"lock": "while_running", "limit": 0}),
        ["dedupe_rules['jobs.quick']", "limit 0", "1 or more"],
    ),
    "an argument that the task does not have": (
        rule({"key": ["kye"]}),
        ["dedupe_rules['jobs.quick']", "jobs.quick", "'kye'", "did you mean 'key'"],
    ),
    "an argument that a task of a glob does not have": (
        {"dedupe_rules": {"jobs.*": {"key": ["gate"]}}},
        ["dedupe_rules['jobs.*']", "for task jobs.", "'gate'", "known names: "],
    ),
    "an attribute in a template": (
        rule({"key": "{key.__class__}"}),
        ["dedupe_rules['jobs.quick']", "{key.__class__}", "mapping keys"],
    ),
    "an argument in a template": (
        rule({"key": "x:{kye}"}),
        ["dedupe_rules['jobs.quick']", "'kye'", "did you mean 'key'"],
    ),
    "a function that is not there": (
        rule({"key": "tests.apps.jobs.nobody"}),
        ["dedupe_rules['jobs.quick']", "'tests.apps.jobs.nobody'", "cannot be imported", "has no attribute"],
    ),
    "a contradiction": (
        rule({"lock": "until_finished", "period": "1h"}),
        [
            "dedupe_rules['jobs.quick']",
            "period '1h'",
            "no meaning with lock 'until_finished'",
            "until_expired",
        ],
    ),
    "a lock without its period": (
        rule("until_expired"),
        ["dedupe_rules['jobs.quick']", "'until_expired' needs a period"],
    ),
    "a default that is none": (
        {"dedupe_defaults": {"lease": -1}},
        ["dedupe_defaults", "lease -1", "a millisecond or more"],
    ),
    "a policy with the name of a lock": (
        {"dedupe_policies": {"once": {"lock": "until_started"}}},
        ["dedupe_policies['once']", "the name of a lock", "another"],
    ),
    "a URL of unknown scheme": (
        {"dedupe_url": "amqp://me:secret@localhost"},
        ["dedupe_url", "'amqp://me:***@localhost'", "redis+socket"],
    ),
    "a URL of a nearly known scheme": (
        {"dedupe_url": "redi://localhost"},
        ["dedupe_url", "'redi://localhost'", "did you mean 'redis'"],
    ),
    "an option that the client does not have": (
        {"dedupe_store_options": {"socket_timeot": 1}, "dedupe_rules": {"jobs.quick": "once"}},
        ["dedupe_store_options", "socket_timeot"],
    ),
    "no switch": ({"dedupe_eager": "yes"}, ["dedupe_eager", "'yes'", "True nor False"]),
}
WORKER_TOO = {
    "unknown setting",
    "unknown lock",
    "unknown field",
    "no duration",
    "an argument that the task does not have",
    "an argument that a task of a glob does not have",
    "an attribute in a template",
    "a URL of unknown scheme",
    "a contradiction",
    "an option that the client does not have",
}


def make_bad(make_app, settings):
    others = {name: value for name, value in settings.items() if name != "dedupe_url"}
    url = {"url": settings["dedupe_url"]} if "dedupe_url" in settings else {}
    return make_app(conf=others, **url)


@pytest.mark.parametrize("kind", BAD)
def test_the_first_publish_says_what_is_wrong_and_sends_nothing(make_app, valkey, kind):
    settings, named = BAD[kind]
    app = make_bad(make_app, settings)
    task = app.tasks.quick

    errors = []
    for publish in (task.delay, task.delay, lambda key: app.app.send_task(task.name, [key])):
        with pytest.raises(ConfigurationError) as caught:
            publish("a")
        errors.append(str(caught.value))

    assert len(set(errors)) == 1, "and so says every later one"
    check(errors[0], named)
    assert valkey.client(BROKER).llen(app.queue) == 0
    assert valkey.client().dbsize() == 0
    assert valkey.client(BACKEND).pubsub_channels() == []


@pytest.mark.parametrize("kind", sorted(WORKER_TOO))
def test_a_worker_does_not_start(make_app, workers, kind):
    settings, named = BAD[kind]
    app = make_bad(make_app, settings)

    worker = workers(app, ready=False)

    assert worker.wait(60) == 1
    lines = [line for line in worker.log.splitlines() if "dedupe_" in line]
    assert len(lines) == 1
    assert lines[0].startswith("celery-dedupe: ")
    check(lines[0].removeprefix("celery-dedupe: "), named)
    assert "Traceback" not in worker.log
    assert "ready." not in worker.log


def check(line, named):
    for part in named:
        assert part in line
    assert "\n" not in line
    assert "secret" not in line


def test_a_good_setting_is_told_in_one_line(make_app, workers, start_valkey):
    server = start_valkey(appendonly="yes")
    app = make_app({"jobs.quick": "once"}, server=server)

    worker = workers(app, concurrency=1)

    worker.wait_for_log("celery-dedupe: all in place")
    (line,) = [line for line in worker.log.splitlines() if "celery-dedupe" in line]
    assert "INFO" in line
    assert re.search(r"enforce, 1 of \d+ tasks under a rule, claims in valkey [\d.]+ at redis://", line)


def warnings_of(worker):
    worker.wait_for_log("celery-dedupe: ")
    worker.stop()
    lines = [line for line in worker.log.splitlines() if "celery-dedupe" in line]
    assert all("WARNING" in line for line in lines), "and no line says that all is in place"
    return lines


def test_what_does_not_fit_is_warned_of(make_app, workers, start_valkey):
    server = start_valkey(maxmemory="64mb", maxmemory_policy="allkeys-lru")
    app = make_app(
        {
            "jobs.quick": {"lock": "once", "lease": "20s"},
            "jobs.held": {"lock": "until_finished", "lease": "2m", "on_duplicate": "none"},
        },
        server=server,
        backend="rpc://",
        conf={"broker_transport_options": {"visibility_timeout": 30}},
    )

    lines = warnings_of(workers(app, concurrency=1))

    for part in (
        "may drop claims when its memory is full (maxmemory-policy allkeys-lru)",
        "appendonly off",
        "the lease of jobs.held, 120 s, is longer than the broker's visibility_timeout, 30 s",
        "rpc:// sends a result to its first caller only",
    ):
        assert len([line for line in lines if part in line]) == 1
    assert len(lines) == 4


def test_claims_in_memory_are_warned_of(make_app, workers):
    app = make_app({"jobs.quick": "until_finished"}, url="memory://")

    (line,) = warnings_of(workers(app, concurrency=1))

    assert "memory:// keeps claims in this process alone: set dedupe_url to a Redis" in line


def test_a_store_that_does_not_answer_is_warned_of_and_work_goes_on(make_app, workers, start_valkey):
    gone = start_valkey()
    app = make_app({"jobs.quick": "until_finished"}, url=gone.store_url)
    gone.stop()

    worker = workers(app, concurrency=1)

    worker.wait_for_log("celery-dedupe: ")
    assert app.tasks.quick.delay("a").get(timeout=20) == "a"
    (line,) = [line for line in worker.log.splitlines() if "celery-dedupe" in line]
    assert "WARNING" in line
    assert str(gone.port) in line
    assert "Traceback" not in worker.log
