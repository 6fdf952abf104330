"""What versions cannot do is said by a worker that starts, where it concerns its tasks."""

from __future__ import annotations

import pytest
from celery import signals as celery_signals

from celery_dedupe import selfcheck
from celery_dedupe.core.versions import shortcomings
from tests.unit.conftest import Consumer
from tests.unit.test_selfcheck import FactsStore

GOOD = {"celery": "5.7.0", "servers": ["valkey 9.1.2"], "results_client": "8.1.0", "limited": ["t"]}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"celery": "5.3.6", "limited": []},
        {"celery": "5.7.1rc1"},
        {"servers": ["redis 6.2.14"]},
        {"servers": ["redis 7.0.15"]},
        {"servers": ["a store that does not answer"]},
        {"servers": ["postgresql 9.6"]},
        {"results_client": "5.2.1"},
        {"results_client": "6.4.0"},
        {"results_client": None},
    ],
    ids=str,
)
def test_of_most_there_is_nothing_to_say(change):
    assert shortcomings(**{**GOOD, **change}) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"celery": "5.8.0"}, ["not tried with Celery 5.8.0", "up to 5.7"]),
        ({"celery": "5.6.3"}, ["Celery 5.6.3", "hard time limit", "the lock of", "Celery 5.7"]),
        ({"servers": ["redis 6.0.16"]}, ["redis 6.0.16", "6.2 or newer"]),
        ({"results_client": "5.3.1"}, ["redis-py 5.3.1", "hang", "6.4"]),
        ({"results_client": "6.3.0"}, ["redis-py 6.3.0", "hang", "before 5.3"]),
    ],
    ids=str,
)
def test_what_one_cannot_do_is_one_sentence_with_the_mend(change, told):
    (finding,) = shortcomings(**{**GOOD, **change})
    assert all(word in finding.text for word in told)


@pytest.mark.parametrize(
    ("lock", "conf", "said"),
    [
        ("until_finished", {}, False),
        ("until_started", {"task_time_limit": 60}, False),
        ("until_finished", {"task_time_limit": 60}, True),
    ],
)
def test_a_worker_says_what_concerns_its_tasks(local_app, log, monkeypatch, lock, conf, said):
    monkeypatch.setattr(selfcheck, "version", lambda name: {"celery": "5.4.0", "redis": "5.3.1"}[name])
    a = local_app({"t": lock}, client=FactsStore(), conf=conf)
    a.task()
    celery_signals.worker_init.send(sender=Consumer(a.app))
    celery_signals.worker_ready.send(sender=Consumer(a.app))
    lines = [record.getMessage() for record in log.records if "celery-dedupe" in record.getMessage()]
    assert ["hard time limit" in line for line in lines] == [said], "results are in memory: no redis-py there"
