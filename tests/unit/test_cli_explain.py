"""``dedupe explain``."""

from __future__ import annotations

import json

import pytest

from celery_dedupe.core.asks import Attempt, BeginAsk, Caller, ClaimAsk


@pytest.fixture
def a(local_app):
    a = local_app({"t": {"lock": "until_finished", "key": ["value"], "queue_ttl": "2h"}})
    a.task()
    a.task(name="free")
    return a


def key_of(dedupe_command, a, *words):
    (lock,) = json.loads(dedupe_command(a.app, "explain", "t", *words, "--json").output)["locks"]
    return lock["key"]


def test_a_call_that_nobody_is_in_the_way_of(dedupe_command, a):
    result = dedupe_command(a.app, "explain", "t", "[7]")
    head, lock, end = result.output.split("\n\n")
    assert result.exit_code == 0
    assert head == "task       t\nrule       t"
    assert lock.splitlines() == [
        "lock       until_finished",
        "fields     queue_ttl 2h, lease 1m, limit 1, on_duplicate existing, on_conflict skip, on_store_error",
        "           allow, in_workflow publish, on_lease_lost continue, wait_limit 1h",
        "key of     value",
        'pre-image  [1,"t","",["names",{"value":7}]]',
        f"key        {key_of(dedupe_command, a, '[7]')}",
        "record     nobody holds it",
    ]
    assert end == (
        "A publish now would be sent; an equal call would be its duplicate to its end.\n"
        "A start now would run, and hold its lock to its end by a lease of 1m.\n"
    )


def test_the_key_is_that_of_a_publish(dedupe_command, a):
    a.app.tasks["t"].delay(7)
    (held,) = [key for key, _ in a.store.scan("*")]
    for words in (("[7]",), ('{"value": 7}',), ("[]", "--kwargs", '{"value": 7}')):
        assert key_of(dedupe_command, a, *words) == held
    assert key_of(dedupe_command, a, '["7"]') != held


def test_who_holds_it(dedupe_command, a):
    queued = a.app.tasks["t"].delay(7)
    a.clock.turn(90)
    key = key_of(dedupe_command, a, "[7]")
    a.store.begin([BeginAsk(key, slot=True, limit=2, lease=60_000)], Attempt("r1", "tok", node="w1@host"))
    a.clock.turn(15)

    result = dedupe_command(a.app, "explain", "t", "[7]")

    assert result.exit_code == 1, "it would be dropped"
    table = result.output.partition("record\n")[2].split("\n\n")[0].splitlines()
    (run,) = a.store.read(key).running
    assert table[0].split() == ["STATE", "TASK", "ID", "NODE", "SINCE", "EXPIRES", "IN", "FENCE"]
    assert table[1].split() == [
        *("queued", queued.id, "-", "2023-11-14", "22:13:20", "UTC,", "1m", "45s", "ago", "1h", "58m", "-"),
    ]
    assert table[2].split() == [
        *("running", "r1", "w1@host", "2023-11-14", "22:14:50", "UTC,", "15s", "ago", "45s"),
        str(run.fence),
    ]
    assert f"A publish now would be dropped as a duplicate of {queued.id}, which is queued" in result.output
    assert "A start now would be skipped, and end REVOKED, as a duplicate of r1" in result.output


def test_a_program_gets_all_of_it(dedupe_command, a):
    queued = a.app.tasks["t"].delay(7)
    a.clock.turn(90)

    result = dedupe_command(a.app, "explain", "t", "[7]", "--json")

    assert result.exit_code == 1
    found = json.loads(result.output)
    (lock,) = found.pop("locks")
    assert found["publish"]["goes"] is False
    assert queued.id in found["publish"]["sentence"]
    assert found["start"]["goes"] is True
    assert (found["task"], found["registered"], found["mode"], found["rule"]) == ("t", True, "enforce", "t")
    assert lock["policy"]["queue_ttl"] == 7200
    assert lock["preimage"] == '[1,"t","",["names",{"value":7}]]'
    (part,) = lock["record"]
    assert (part["state"], part["task_id"], part["node"], part["fence"]) == ("queued", queued.id, None, None)
    assert part["since"].startswith("2023-11-14T22:13:20.")
    assert part["since"].endswith("+00:00")
    assert part["age"] == pytest.approx(90, abs=1)
    assert part["expires_in"] == pytest.approx(7110, abs=1)


def test_what_is_kept_for_ever_never_expires(dedupe_command, local_app):
    a = local_app({"t": {"lock": "once", "keep": None}})
    done = a.task().delay(7)
    a.run_next()
    result = dedupe_command(a.app, "explain", "t", "[7]")
    assert f"{done.id}, which is done for ever" in result.output
    assert "never" in result.output.partition("record\n")[2]
    (lock,) = json.loads(dedupe_command(a.app, "explain", "t", "[7]", "--json").output)["locks"]
    assert lock["record"][0]["expires_in"] is None


def test_a_run_whose_result_is_final_is_in_nobodys_way(dedupe_command, a):
    """As for a publish, the result backend is asked."""
    key = key_of(dedupe_command, a, "[7]")
    a.store.begin([BeginAsk(key, slot=True, lease=60_000)], Attempt("r1", "tok"))
    assert dedupe_command(a.app, "explain", "t", "[7]").exit_code == 1
    a.app.backend.store_result("r1", 7, "SUCCESS")
    assert dedupe_command(a.app, "explain", "t", "[7]").exit_code == 0


def test_it_changes_nothing(dedupe_command, a):
    a.app.tasks["t"].delay(7)
    before = dict(a.store.scan("*"))
    a.store.calls.clear()
    dedupe_command(a.app, "explain", "t", "[7]")
    assert dict(a.store.scan("*")) == before
    assert a.store.calls == []
    assert a.events == [a.events[0]], "the publish before, and nothing since"


def test_several_locks(dedupe_command, local_app):
    a = local_app({"t": ["until_started", {"lock": "while_running", "key": []}]})
    a.task()
    found = json.loads(dedupe_command(a.app, "explain", "t", "[7]", "--json").output)
    assert [lock["policy"]["lock"] for lock in found["locks"]] == ["until_started", "while_running"]
    a.store.claim([ClaimAsk(found["locks"][0]["key"], 60_000, frozenset())], Caller("q1"))
    text = dedupe_command(a.app, "explain", "t", "[7]").output
    assert text.count("\nlock ") == 2
    assert text.count("nobody holds it") == 1


def test_a_rate(dedupe_command, local_app):
    a = local_app({"t": {"rate": "1/m", "key": []}})
    t = a.task()
    said = []
    for value in range(3):
        said.append(dedupe_command(a.app, "explain", "t", "[7]").output)
        t.delay(value)
        (message, *_) = a.messages()[-1:]
        a.start(message)
    free, full, _ = said
    assert "lock       none: it has a rate" in free
    assert "fields     rate 1/60s, on_duplicate existing, on_conflict wait" in free
    assert "A start now would run.\n" in free
    assert "starts     1 of late; nobody waits\nrecord     nobody holds it" in full
    assert "A start now would wait for a slot of its own: its rate has a start free in 60.5 s.\n" in full
    last = dedupe_command(a.app, "explain", "t", "[7]").output
    assert "starts     1 of late; slots are promised for 2m" in last
    found = json.loads(dedupe_command(a.app, "explain", "t", "[7]", "--json").output)
    assert found["locks"][0]["policy"]["rate"] == "1/60s"
    assert "lock" not in found["locks"][0]["policy"]


def test_tasks_without_a_rule(dedupe_command, local_app):
    a = local_app({"alone": None})
    a.task(name="free")
    a.task(name="alone")
    free, alone = (dedupe_command(a.app, "explain", name, "[1]") for name in ("free", "alone"))
    assert (free.exit_code, alone.exit_code) == (0, 0)
    assert "rule       no rule reaches it\n" in free.output
    assert "rule       alone\n           which leaves it alone\n" in alone.output
    assert "A publish now would be sent: no rule refuses a publish." in free.output


def test_a_task_that_this_program_does_not_have(dedupe_command, local_app):
    a = local_app({"else.*": {"lock": "once", "key": ["b"]}})
    result = dedupe_command(a.app, "explain", "else.where", '{"b": 1}')
    assert result.exit_code == 0
    assert "task       else.where (not registered here)\n" in result.output
    a.app.send_task("else.where", kwargs={"b": 1})
    assert dedupe_command(a.app, "explain", "else.where", '{"b": 1}').exit_code == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["[7"],
            "ARGS '[7' is not JSON (Expecting ',' delimiter: line 1 column 3 (char 2)); write '[1, ",
        ),
        (["7"], "ARGS is a JSON list, or an object without --kwargs"),
        (['{"value": 1}', "--kwargs", '{"value": 1}'], "ARGS is a JSON list, or an object without --kwargs"),
        (["[]", "--kwargs", "[1]"], "--kwargs is an object"),
        (["[1, 2, 3]"], "Celery refuses such a call of t(value: 'Any' = None)"),
        (['{"other": 1}'], "unexpected keyword argument 'other'"),
    ],
)
def test_arguments_that_are_none(dedupe_command, a, words, message):
    result = dedupe_command(a.app, "explain", "t", *words)
    assert result.exit_code == 2
    assert message in result.output


def test_a_call_that_makes_no_key(dedupe_command, local_app):
    a = local_app({"t": {"lock": "once", "key": "{value.id}"}})
    a.task()
    result = dedupe_command(a.app, "explain", "t", "[7]")
    assert result.exit_code == 2
    assert "argument 'value' of 't' has no item 'id', which the key needs" in result.output


def test_in_mode_observe_nothing_is_refused(dedupe_command, local_app):
    a = local_app({"t": "until_finished"}, mode="observe")
    a.task().delay(7)
    result = dedupe_command(a.app, "explain", "t", "[7]")
    assert result.exit_code == 0
    words = (
        "A publish now would be sent all the same, for the lock only observes; enforced, it would be dropped"
    )
    assert words in result.output


def test_in_mode_off_nothing_happens(dedupe_command, local_app):
    a = local_app({"t": "until_finished"}, mode="off")
    a.task().delay(7)
    result = dedupe_command(a.app, "explain", "t", "[7]")
    assert result.exit_code == 0
    assert (
        "A publish now would be sent: dedupe_mode is 'off'.\nA start now would run: dedupe_mode"
        in result.output
    )
