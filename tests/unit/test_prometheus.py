"""What Prometheus is told is what was counted, and the examples ask for what it is told."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from celery_dedupe.core.counts import COUNTED
from celery_dedupe.errors import ConfigurationError
from celery_dedupe.prometheus import DedupeCollector
from tests.harness.processes import ROOT

EXAMPLES = ROOT / "examples" / "monitoring"
NAME = "dedupe:stats"


def scraped(a: Any) -> dict[tuple[str, ...], float]:
    """The samples of one scrape, by name and labels."""
    registry = CollectorRegistry()
    registry.register(DedupeCollector(a.dedupe))
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


@pytest.fixture
def a(local_app: Any) -> Any:
    return local_app({"t": "until_finished"})


def test_every_word_of_every_task_that_was_counted(a):
    a.store.count(NAME, {("b\"'\n", "started"): 1, ("a", "dropped"): 7})
    found = scraped(a)
    assert found.pop(("celery_dedupe_store_up",)) == 1
    assert found.keys() == {
        ("celery_dedupe_verdicts_total", *sorted((task, word)))
        for task in ("a", "b\"'\n")
        for word in COUNTED
    }
    assert found["celery_dedupe_verdicts_total", "a", "dropped"] == 7
    assert sum(found.values()) == 8


def test_numbers_do_not_fall_when_an_hour_is_forgotten(a):
    for _ in range(3):
        a.store.count(NAME, {("t", "started"): 1})
        a.clock.turn(7 * 86400)
    assert scraped(a)["celery_dedupe_verdicts_total", "started", "t"] == 3


def test_labels_are_task_and_verdict_alone(a):
    t = a.task()
    for _ in range(3):
        t.delay("a secret")
    a.dedupe.guard.counters.flush()
    (family,) = [one for one in DedupeCollector(a.dedupe).collect() if one.name == "celery_dedupe_verdicts"]
    assert {tuple(sample.labels) for sample in family.samples} == {("task", "verdict")}
    assert "secret" not in repr(family.samples)


def test_a_store_that_is_away_is_told(a):
    a.store.counts = lambda *_: a.store._ask("read")
    a.store.down = True
    assert scraped(a) == {("celery_dedupe_store_up",): 0}


def test_registering_asks_nobody(a):
    a.store.counts = None
    CollectorRegistry().register(DedupeCollector(a.dedupe))


@pytest.mark.parametrize("settings", [{"mode": "off"}, {"stats": False}])
def test_where_nothing_is_counted_nothing_is_collected(local_app, settings):
    a = local_app(**settings)
    with pytest.raises(ConfigurationError, match="nothing is counted"):
        DedupeCollector(a.dedupe)


# The examples


def alert_rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((EXAMPLES / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> Any:
    return json.loads((EXAMPLES / "dashboard.json").read_text())


def expressions() -> Iterator[str]:
    for rule in alert_rules():
        yield rule["expr"]
    for panel in dashboard()["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


EXPRESSIONS = sorted(set(expressions()))


def test_there_are_some():
    assert len(alert_rules()) >= 5
    assert len(dashboard()["panels"]) >= 5
    assert len(EXPRESSIONS) >= 12


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_the_names_in_it_exist(a, expression):
    a.store.count(NAME, {("t", "started"): 1})
    names = {name for name, *_ in scraped(a)}
    asked = set(re.findall(r"\bcelery_dedupe\w*", expression))
    assert asked
    assert asked <= names
    labels = set(re.findall(r'[{,]\s*(\w+)\s*=~?\s*"', expression)) | set(
        re.findall(r"by \((\w+)\)", expression)
    )
    assert labels <= {"task", "verdict"}
    for words in re.findall(r'verdict=~?"([^"]*)"', expression):
        assert set(words.split("|")) <= set(COUNTED)
    assert expression.count("(") == expression.count(")")


def test_every_word_is_shown_somewhere():
    shown = {
        word
        for text in EXPRESSIONS
        for words in re.findall(r'verdict=~"([^"]*)"', text)
        for word in words.split("|")
    }
    assert shown == set(COUNTED)


def test_every_panel_has_a_place_of_its_own():
    taken = [
        (x, y)
        for panel in dashboard()["panels"]
        for at in [panel["gridPos"]]
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("rule", alert_rules(), ids=lambda rule: rule["alert"])
def test_each_alert_says_what_it_means(rule):
    assert rule["alert"].startswith("Dedupe")
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"].keys() == {"summary", "description"}
    commands = re.findall(r"`celery -A proj dedupe (\w+)", rule["annotations"]["description"])
    assert set(commands) <= {"locks", "stats"}
