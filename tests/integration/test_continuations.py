"""Workflows that meet themselves: shared heads, equal members, callbacks, errbacks, a task that goes on."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError, TaskRevokedError

from celery_dedupe import DuplicateTask
from tests.apps.families import (
    FAILED,
    FAMILIES,
    RAN,
    REVOKED,
    RULES,
    Family,
    claims_left,
    define_families,
    fate,
    in_letters,
    note_events,
    release,
    take_idle,
    tasks_of,
)
from tests.harness.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    # Celery's Redis backend stores results by a command that redis-py 8 calls deprecated.
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
]
THREADS = 64


@pytest.fixture
def app(request, make_app, workers):
    """With as many threads as there are keys to hold, or with two processes where none is held."""
    pool = getattr(request, "param", "threads")
    app = make_app(RULES, setup=define_families)
    workers(app, pool=pool, concurrency=THREADS if pool == "threads" else 2)
    return app


IN_BOTH_POOLS = pytest.mark.parametrize("app", ["threads", "prefork"], indirect=True)


def outcome(result: Any) -> Any:
    """What ``get`` gives, a result in letters or the error; it must not hang."""
    try:
        return in_letters(result.get(timeout=20))
    except Exception as error:  # noqa: BLE001 - all that get() raises is looked at
        return error


def assert_end(got: Any, end: str, value: Any, where: str, *others: type[Exception]) -> None:
    if end == RAN:
        assert got == value, f"{where}: {got!r}"
    else:
        own = TaskRevokedError if end == REVOKED else DuplicateTask
        assert isinstance(got, (own, *others)), f"{where}: {got!r}"


def runs_of(ledger: Any, family: Family) -> Counter[str]:
    runs = [run for run in ledger.runs() if run.task.startswith(f"{family.name}.")]
    return Counter(in_letters(run.key) for run in runs)


def assert_runs(ledger: Any, family: Family, expected: str) -> None:
    wait_until(
        lambda: runs_of(ledger, family).total() >= len(expected),
        10,
        lambda: f"{family.name}: {runs_of(ledger, family)}",
    )
    assert runs_of(ledger, family) == Counter(expected), family.name
    if family.runs:
        assert ledger.overlaps(f"{family.name}:K") == []


def assert_free(app: Any) -> None:
    wait_until(lambda: not claims_left(app), 10, lambda: "\n".join(claims_left(app)))


def conflicts(ledger: Any) -> set[str]:
    """Families in which a publish was refused or a start has met a conflict."""
    notes = [*ledger.notes("dropped"), *ledger.notes("refused")]
    return {note["task"].partition(".")[0] for note in notes}


def starts_in_conflict(ledger: Any) -> set[str]:
    return {note["task"].partition(".")[0] for note in ledger.notes("refused")}


def occupy(app: Any, families: list[Family]) -> None:
    """The key K of each family is taken until ``release``."""
    for family in families:
        tasks = tasks_of(app, family)
        if family.runs:
            tasks.holds.delay(f"{family.name}:K")
        else:
            tasks.quick.apply_async((f"{family.name}:K",), queue=f"{app.queue}-idle")
    app.ledger.wait_for(sum(family.runs for family in families), ended=False)


def await_conflicts(ledger: Any, families: list[Family]) -> None:
    """Until each family has met the last conflict that it can meet while K is taken."""

    def missing() -> list[str]:
        met, started = conflicts(ledger), starts_in_conflict(ledger)
        return [
            family.name
            for family in families
            if family.name not in (started if meets_at_start(family) else met)
        ]

    wait_until(lambda: not missing(), 45, lambda: f"no conflict in {missing()}", 0.1)


def meets_at_start(family: Family) -> bool:
    return family.runs and (family.in_workflow == "publish" or family.lock == "while_running")


@pytest.mark.parametrize("shape", ["chains", "group", "chord"])
def test_equal_tasks_at_the_head_of_two_chains_or_side_by_side(app, ledger, shape):
    """Cases 37, 38. All are queued before the first of them starts, which keeps its key until ``release``."""
    results = {}
    for family in FAMILIES:
        tasks, name = tasks_of(app, family), family.name
        task = (tasks.holds if family.runs else tasks.quick).si(f"{name}:K").set(queue=f"{app.queue}-idle")
        if shape == "chains":
            chains = [chain(task, tasks.append.s(f"{name}:a")) for _ in "12"]
            results[name] = [links.apply_async() for links in chains]
        elif shape == "group":
            results[name] = [group(task, task).apply_async()]
        else:
            results[name] = [chord([task, task], tasks.gather.s(f"{name}:c")).apply_async()]
    take_idle(app)
    await_conflicts(ledger, FAMILIES)
    release(app)

    for family in FAMILIES:
        dropped = family.in_workflow == "drop" and family.lock != "while_running"
        end = REVOKED if dropped else fate(family)
        one, both, second = {
            "chains": ("Ka", "KKaa", ["K", "a"]),
            "group": ("K", "KK", ["K", "K"]),
            "chord": ("K", "KKc", ["K", "K"]),
        }[shape]
        got = [outcome(result) for result in results[family.name]]
        if shape == "chains":
            # Whichever of the two starts first.
            got.sort(key=lambda value: isinstance(value, Exception))
            assert got[0] == ["K", "a"], family.name
        assert_end(got[-1], end, second, family.name, *([ChordError] if shape == "chord" else []))
        assert_runs(ledger, family, both if end == RAN else one)
    assert_free(app)


@IN_BOTH_POOLS
def test_a_key_that_comes_twice_in_one_chain_runs_twice_in_turn(app, ledger):
    """The next link is published from inside: a successor, whatever on_conflict and in_workflow say."""
    results = {}
    for family in FAMILIES:
        tasks, name = tasks_of(app, family), family.name
        links = chain(tasks.quick.s(f"{name}:K"), tasks.append.s(f"{name}:K"), tasks.append.s(f"{name}:a"))
        results[name] = links.apply_async()

    for family in FAMILIES:
        end = RAN
        if family.lock == "once":
            end = FAILED if family.on_conflict == "raise" else REVOKED
        assert_end(outcome(results[family.name]), end, ["K", "K", "a"], family.name)
        assert_runs(ledger, family, "KKa" if end == RAN else "K")
    assert_free(app)


@pytest.mark.parametrize("links", [1, 2], ids=["one callback", "two callbacks"])
def test_a_callback_that_is_a_duplicate_changes_nothing_for_its_task(app, ledger, links):
    """One callback is a call like any other; several are sent as a group, whose members' ids are held."""
    occupy(app, FAMILIES)
    results = {}
    for family in FAMILIES:
        tasks, name = tasks_of(app, family), family.name
        callbacks = [tasks.append.s(f"{name}:K").set(dedupe={"on_duplicate": "raise"})]
        callbacks += [tasks.append.s(f"{name}:b")] * (links - 1)
        results[name] = tasks.quick.apply_async((f"{name}:a",), link=callbacks)
    wait_until(lambda: len(conflicts(ledger)) == len(FAMILIES), 30, lambda: f"{conflicts(ledger)}", 0.1)
    if links == 2:
        await_conflicts(ledger, FAMILIES)

    for family in FAMILIES:
        assert outcome(results[family.name]) == "a", family.name
        assert results[family.name].state == "SUCCESS", family.name
    release(app)
    for family in FAMILIES:
        end = fate(family) if links == 2 else fate_alone(family)
        assert_runs(ledger, family, ("KKa" if end == RAN else "Ka") + "b" * (links - 1))
    assert_free(app)


def fate_alone(family: Family) -> str:
    """What becomes of a message that nobody waits for, whose key another task holds."""
    if family.lock not in ("while_running", "queue_and_run"):
        return REVOKED
    return {"skip": REVOKED, "wait": RAN, "raise": FAILED}[family.on_conflict]


def test_an_errback_that_is_a_duplicate_is_called_or_turned_away_like_any_member(app, ledger):
    """A bound errback is sent as a message, in a group of Celery's own."""
    occupy(app, FAMILIES)
    results = {}
    for family in FAMILIES:
        tasks, name = tasks_of(app, family), family.name
        results[name] = tasks.fails.apply_async((f"{name}:a",), link_error=tasks.quick.si(f"{name}:K"))
    await_conflicts(ledger, FAMILIES)
    release(app)

    for family in FAMILIES:
        assert isinstance(outcome(results[family.name]), ValueError), family.name
        assert_runs(ledger, family, "KKa" if fate(family) == RAN else "Ka")
    assert_free(app)


@pytest.mark.parametrize("place", ["first", "later", "header", "body"])
def test_errbacks_are_called_once_for_a_duplicate_that_will_not_run(app, ledger, place):
    occupy(app, FAMILIES)
    results = {}
    for family in FAMILIES:
        tasks, name = tasks_of(app, family), family.name
        error = tasks.record_error.s(key=f"{name}:e")
        results[name] = workflow_with_errback(place, tasks, name, error).apply_async()
    await_conflicts(ledger, FAMILIES)
    release(app)

    turned_away = [family for family in FAMILIES if fate(family) != RAN]
    for family in FAMILIES:
        assert isinstance(outcome(results[family.name]), Exception) == (family in turned_away), family.name
    assert_free(app)
    told = [family.name for family in turned_away]

    def calls() -> list[str]:
        return sorted(note["key"].partition(":")[0] for note in ledger.notes("error"))

    wait_until(lambda: len(calls()) >= len(told), 10, lambda: f"{calls()}")
    assert calls() == sorted(told)


def workflow_with_errback(place: str, tasks: Any, name: str, error: Any) -> Any:
    quick, append, gather = tasks.quick.s, tasks.append.s, tasks.gather.s
    held, a, b = f"{name}:K", f"{name}:a", f"{name}:b"
    if place == "first":
        return chain(quick(held), append(a)).on_error(error)
    if place == "later":
        return chain(quick(a), append(held), append(b)).on_error(error)
    if place == "header":
        return chord([quick(held), quick(a)], gather(b).on_error(error))
    return chord([quick(a), quick(b)], gather(held).on_error(error))


@IN_BOTH_POOLS
def test_a_task_that_replaces_itself_or_retries_goes_on_under_its_key(app, ledger):
    turns = ["replace", "replace", "retry", "replace", "retry", "retry"]
    results = {}
    for family in FAMILIES:
        tasks, name = tasks_of(app, family), family.name
        links = chain(tasks.turns.s(f"{name}:K", turns), tasks.append.s(f"{name}:a"))
        member = tasks.turns.s(f"{name}:L", turns)
        results[name] = links.apply_async(), chord([member], tasks.gather.s(f"{name}:b")).apply_async()

    for family in FAMILIES:
        assert [outcome(result) for result in results[family.name]] == [["K", "a"], ["L"]], family.name
        assert_runs(ledger, family, "K" * 7 + "L" * 7 + "ab")
        assert ledger.overlaps(f"{family.name}:L") == [], "the same task never runs beside itself"
    assert_free(app)


def test_what_waits_for_work_done_once_runs_if_that_fails(app, ledger):
    families = [family for family in FAMILIES if family.lock == "once" and fate_after_failure(family) == RAN]
    results = {}
    for family in families:
        tasks, name = tasks_of(app, family), family.name
        tasks.holds.delay(f"{name}:K", "badly")
    ledger.wait_for(len(families), ended=False)
    for family in families:
        tasks, name = tasks_of(app, family), family.name
        results[name] = chain(tasks.quick.s(f"{name}:K"), tasks.append.s(f"{name}:a")).apply_async()
    await_conflicts(ledger, families)
    release(app)

    for family in families:
        assert outcome(results[family.name]) == ["K", "a"], family.name
        assert_runs(ledger, family, "KKa")
    assert_free(app)


def fate_after_failure(family: Family) -> str:
    return RAN if family.in_workflow == "publish" and family.on_conflict != "raise" else FAILED


def test_raise_is_for_a_caller_and_not_for_celery_itself(make_app, workers, ledger):
    """What Celery publishes ends REVOKED, and what has run or was sent along with it keeps its own end."""
    lock = {"lock": "until_finished", "key": ["key"], "scope": "shared"}
    rules = {"jobs.append": {**lock, "on_duplicate": "raise", "in_workflow": "drop"}, "jobs.held": lock}
    app = make_app(rules)
    workers(app, pool="threads", concurrency=8)
    quick, append, gather = app.tasks.quick.s, app.tasks.append.s, app.tasks.gather.s
    app.tasks.held.delay("K")
    ledger.wait_for(1, ended=False)

    for call in (append([], "K"), chain(append([], "K"), append("a")), append([], "K") | quick("b")):
        with pytest.raises(DuplicateTask):
            call.delay()

    later = chain(quick("c"), append("K"), append("d")).delay()
    assert isinstance(outcome(later), TaskRevokedError)
    assert outcome(later.parent.parent) == "c"
    members = group(quick("e"), append([], "K"), chain(append([], "K"), append("f")), quick("g")).delay()
    got = [outcome(member) for member in members]
    assert [value if isinstance(value, str) else type(value) for value in got] == [
        "e", TaskRevokedError, TaskRevokedError, "g",
    ]  # fmt: skip
    body = chord([quick("h"), quick("i")], append("K")).delay()
    assert isinstance(outcome(body), TaskRevokedError)
    header = chord([quick("j"), append([], "K")], gather("k")).delay()
    assert isinstance(outcome(header), (ChordError, TaskRevokedError))
    replaced = app.tasks.replaces.delay("l", "jobs.append", [[], "K"])
    assert isinstance(outcome(replaced), TaskRevokedError)

    ledger.open_gate("gate")
    ledger.wait_for(8)
    assert_free(app)
    assert sorted(run.key for run in ledger.runs()) == ["K", "c", "e", "g", "h", "i", "j", "l"]
    assert replaced.state == "REVOKED"


@pytest.mark.parametrize("as_callback", [False, True], ids=["link", "callback"])
def test_what_celery_publishes_while_the_store_is_away_waits_for_it_at_its_start(
    make_app, workers, ledger, valkey, start_proxy, as_callback
):
    """``once`` does not run without the store, and the task before it has done its work all the same."""
    line = start_proxy(valkey.store_url)
    rules = {"jobs.append": {"lock": "once", "key": ["key"]}}
    app = make_app(rules, setup=note_events, url=line.url, store_options={"socket_timeout": 0.5})
    workers(app, pool="prefork", concurrency=2)
    tasks = app.tasks
    if as_callback:
        first = tasks.held.apply_async(("a",), link=tasks.append.s("b"))
    else:
        first = chain(tasks.held.s("a"), tasks.append.s("b"), tasks.append.s("c")).apply_async().parent.parent
    ledger.wait_for(1, "a", ended=False)

    line.refuse()
    ledger.open_gate("gate")
    assert first.get(timeout=20) == "a"
    wait_until(lambda: ledger.notes("refused"))
    line.restore()

    ledger.wait_for(1, "b" if as_callback else "c", timeout=30)
    assert [run.key for run in ledger.runs()] == (["a", "b"] if as_callback else ["a", "b", "c"])
    assert_free(app)
