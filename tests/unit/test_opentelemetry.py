"""What OpenTelemetry is told of verdicts, and the link from a duplicate to what is in its way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider, sampling
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from celery_dedupe.errors import ConfigurationError
from celery_dedupe.opentelemetry import LINKED, instrument


class Observatory:
    """A tracer and a meter that keep what they are told."""

    def __init__(self, sampler: sampling.Sampler = sampling.ALWAYS_ON) -> None:
        self._spans = InMemorySpanExporter()
        self.tracers = TracerProvider(sampler=sampler)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.tracer = self.tracers.get_tracer("test")
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader])

    def span(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self._spans.get_finished_spans() if span.name == name]
        return found

    def points(self, name: str) -> list[Any]:
        data = self._reader.get_metrics_data()
        metrics = (
            [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics] if data else []
        )
        return [point for metric in metrics if metric.name == name for point in metric.data.data_points]

    def counted(self) -> dict[tuple[str, str], int]:
        points = self.points("celery_dedupe.verdicts")
        assert all(point.attributes.keys() == {"task", "verdict"} for point in points)
        return {(point.attributes["task"], point.attributes["verdict"]): point.value for point in points}

    def close(self) -> None:
        self.meters.shutdown()
        self.tracers.shutdown()


@pytest.fixture
def observatory() -> Iterator[Observatory]:
    made = Observatory()
    yield made
    made.close()


@pytest.fixture
def celery_spans(observatory: Observatory) -> Iterator[None]:
    """Celery's own spans, as its instrumentation makes them."""
    instrumentor = CeleryInstrumentor()
    instrumentor.instrument(tracer_provider=observatory.tracers)
    yield
    instrumentor.uninstrument()


def observed(a: Any, observatory: Observatory) -> Any:
    instrument(a.dedupe, observatory.meters)
    return a


def test_each_verdict_is_counted_and_timed(local_app, observatory):
    a = observed(local_app({"t": "until_finished"}), observatory)
    t = a.task()
    for _ in range(3):
        t.delay("a secret")
    a.run_next()
    assert observatory.counted() == {("t", "published"): 1, ("t", "dropped"): 2, ("t", "started"): 1}
    durations = observatory.points("celery_dedupe.verdict.duration")
    assert {point.attributes["verdict"]: point.count for point in durations} == {
        "published": 1,
        "dropped": 2,
        "started": 1,
    }
    assert all(point.attributes.keys() == {"task", "verdict"} for point in durations)
    assert all(0 < point.sum < 60 for point in durations)


def test_what_is_not_decided_takes_no_time(local_app, observatory):
    a = observed(local_app({"t": "while_running"}), observatory)
    t = a.task()
    t.delay(1)
    a.store.down = True
    a.run_next()
    assert observatory.counted()["t", "unprotected"] == 1
    durations = observatory.points("celery_dedupe.verdict.duration")
    assert {point.attributes["verdict"] for point in durations} == {"published", "started"}


def test_a_second_call_has_no_effect(local_app, observatory):
    a = observed(observed_twice := local_app({"t": "until_finished"}), observatory)
    instrument(observed_twice.dedupe, observatory.meters)
    a.task().delay(1)
    assert observatory.counted() == {("t", "published"): 1}


def test_another_app_is_not_told_of(local_app, observatory):
    observed(local_app({"t": "until_finished"}), observatory)
    other = local_app({"t": "until_finished"})
    other.task().delay(1)
    assert observatory.counted() == {}


def test_an_extension_without_an_app_says_so(local_app, observatory):
    a = local_app(install=False)
    with pytest.raises(ConfigurationError, match="call init_app first"):
        instrument(a.dedupe, observatory.meters)


def test_the_span_of_a_publish_says_what_became_of_it(local_app, observatory):
    a = observed(local_app({"t": "until_finished"}), observatory)
    t = a.task()
    with observatory.tracer.start_as_current_span("first"):
        first = t.delay(1)
    with observatory.tracer.start_as_current_span("second"):
        t.delay(1)
    assert observatory.span("first").attributes == {"celery_dedupe.publish": "published"}
    assert observatory.span("second").attributes == {
        "celery_dedupe.publish": "dropped",
        "celery_dedupe.duplicate_of": first.id,
    }


def test_a_duplicate_is_linked_to_the_trace_of_what_is_in_its_way(local_app, observatory):
    a = observed(local_app({"t": "until_finished"}), observatory)
    t = a.task()
    with observatory.tracer.start_as_current_span("first"):
        first = t.delay(1)
    with observatory.tracer.start_as_current_span("second"):
        t.delay(1)
    (link,) = observatory.span("second").links
    assert link.context.trace_id == observatory.span("first").context.trace_id
    assert link.context.span_id == observatory.span("first").context.span_id
    assert link.attributes == {"celery_dedupe.duplicate_of": first.id, "celery_dedupe.task": "t"}


def test_what_observes_only_is_linked_too(local_app, observatory):
    a = observed(local_app({"t": "until_finished"}, mode="observe"), observatory)
    t = a.task()
    for name in ("first", "second"):
        with observatory.tracer.start_as_current_span(name):
            t.delay(1)
    assert len(observatory.span("second").links) == 1
    assert observatory.span("second").attributes["celery_dedupe.publish"] == "published"


def test_what_the_store_keeps_for_that_ends_by_itself(local_app, observatory):
    a = observed(local_app({"t": {"queue_ttl": "1d"}}), observatory)
    t = a.task()
    with observatory.tracer.start_as_current_span("first"):
        first = t.delay(1)
    assert a.store.look(f"dedupe:trace:{first.id}").startswith("00-")
    a.clock.turn(LINKED / 1000)
    with observatory.tracer.start_as_current_span("second"):
        t.delay(1)
    assert observatory.span("second").links == ()
    assert observatory.span("second").attributes["celery_dedupe.duplicate_of"] == first.id


@pytest.mark.parametrize("sampler", [None, sampling.ALWAYS_OFF])
def test_where_no_span_is_sampled_the_store_is_asked_for_nothing_more(local_app, monkeypatch, sampler):
    """Without any span, and in one that nobody keeps."""
    observatory = Observatory(sampler or sampling.ALWAYS_ON)
    a = observed(local_app({"t": "until_finished"}), observatory)
    monkeypatch.setattr(a.store, "swap", None)
    monkeypatch.setattr(a.store, "look", None)
    t = a.task()
    if sampler is None:
        t.delay(1)
        t.delay(1)
    else:
        with observatory.tracer.start_as_current_span("web"):
            t.delay(1)
            t.delay(1)
    assert observatory.counted() == {("t", "published"): 1, ("t", "dropped"): 1}
    observatory.close()


def test_a_store_that_is_away_costs_the_link_alone(local_app, observatory, log):
    a = observed(local_app({"t": "until_finished"}), observatory)
    t = a.task()
    a.store.swap = a.store.look = lambda *_: a.store._ask("none")
    a.store.failing.add("none")
    for name in ("first", "second"):
        with observatory.tracer.start_as_current_span(name):
            t.delay(1)
        a.dedupe.guard.store.first.breaker._retry_at = None
    assert observatory.span("second").attributes["celery_dedupe.publish"] == "dropped"
    assert observatory.span("second").links == ()
    assert "raised; the task goes on" not in log.text


@pytest.mark.parametrize(
    ("on_conflict", "word"), [("skip", "skipped"), ("raise", "skipped"), ("wait", "waited")]
)
def test_the_span_of_a_run_says_what_became_of_its_start(
    local_app, observatory, celery_spans, on_conflict, word
):
    a = observed(local_app({"t": {"lock": "while_running", "on_conflict": on_conflict}}), observatory)
    go_on, entered = threading.Event(), threading.Event()

    def body(task: Any, value: Any) -> None:
        if not entered.is_set():
            entered.set()
            assert go_on.wait(10)

    t = a.task(body)
    first = t.delay(1)
    running = threading.Thread(target=a.start, args=a.messages())
    running.start()
    assert entered.wait(10)
    t.delay(1)
    a.run_next()
    assert observatory.span("run/t").attributes["celery_dedupe.start"] == word
    assert observatory.span("run/t").attributes["celery_dedupe.duplicate_of"] == first.id
    assert observatory.span("run/t").attributes["celery.task_name"] == "t", "it is Celery's own span"
    go_on.set()
    running.join()
    spans = observatory._spans.get_finished_spans()
    starts = [span.attributes["celery_dedupe.start"] for span in spans if span.name == "run/t"]
    assert starts == [word, "started"]


def test_a_copy_that_ends_quietly(local_app, observatory, celery_spans):
    a = observed(local_app({"t": "until_finished"}), observatory)
    t = a.task()
    t.delay(1)
    (message,) = a.messages()
    a.start(message)
    a.start(message, redelivered=True)
    spans = [span for span in observatory._spans.get_finished_spans() if span.name == "run/t"]
    assert [span.attributes["celery_dedupe.start"] for span in spans] == ["started", "quiet"]


def test_a_run_without_a_rule_has_no_mark(local_app, observatory, celery_spans):
    a = observed(local_app({"other": "until_finished"}), observatory)
    a.task().delay(1)
    a.run_next()
    assert "celery_dedupe.start" not in observatory.span("run/t").attributes
    assert trace.get_current_span() is trace.INVALID_SPAN
