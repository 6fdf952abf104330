"""What becomes of publishes and starts, for OpenTelemetry (extra ``opentelemetry``).

    from celery_dedupe.opentelemetry import instrument

    instrument(app.dedupe)

``docs/metrics.md`` names the instruments and the attributes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakSet

from celery import signals as celery_signals
from celery.app.task import Task
from opentelemetry import metrics, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from celery_dedupe import signals
from celery_dedupe.core.counts import counted
from celery_dedupe.core.verdicts import Refusal
from celery_dedupe.errors import StoreUnavailable
from celery_dedupe.extension import Dedupe
from celery_dedupe.gates.desk import VERDICT
from celery_dedupe.guard.runs import Run

T = TypeVar("T")

LINKED = 3_600_000  # ms that a duplicate is linked to the trace of what was published before it

_PROPAGATOR = TraceContextTextMapPropagator()
_instrumented: WeakSet[Dedupe] = WeakSet()


def instrument(dedupe: Dedupe, meter_provider: metrics.MeterProvider | None = None) -> None:
    """Tell OpenTelemetry of every verdict from now on. A second call has no effect.

    Each verdict is counted, and the time that it took is recorded. The current span of a publish and the span
    of a run get it as an attribute. A duplicate's span is linked to that in which the task in its way was
    published: for that the store is told of the span, one round trip more for a publish in a sampled one.

    Arguments:
        dedupe: ``app.dedupe``, after ``init_app``.
        meter_provider: by default the global one, which may be set later.
    """
    if dedupe in _instrumented:
        return
    _instrumented.add(dedupe)
    telemetry = _Telemetry(dedupe, metrics.get_meter("celery_dedupe", meter_provider=meter_provider))
    for signal, receiver in (
        (signals.verdict_reached, telemetry.measure),
        (signals.lock_taken, telemetry.remember_span),
        (signals.publish_dropped, telemetry.link_duplicate),
    ):
        signal.connect(receiver, sender=dedupe.app, weak=False)
    # Ahead of the tracer, which closes the run's span there; it opens that after the start was decided.
    dedupe.connect(celery_signals.task_postrun, telemetry.mark_run)


class _Telemetry:
    def __init__(self, dedupe: Dedupe, meter: metrics.Meter) -> None:
        self._dedupe = dedupe
        self._verdicts = meter.create_counter(
            "celery_dedupe.verdicts", unit="{verdict}", description="What became of publishes and starts."
        )
        self._duration = meter.create_histogram(
            "celery_dedupe.verdict.duration",
            unit="s",
            description="How long a publish or a start took to decide, the claim store included.",
        )

    def measure(self, app: Any, event: signals.VerdictReached) -> None:
        labels = {"task": event.task, "verdict": event.verdict}
        self._verdicts.add(1, labels)
        if event.seconds is not None:
            self._duration.record(event.seconds, labels)
        if event.verdict in ("published", "dropped"):
            trace.get_current_span().set_attribute("celery_dedupe.publish", event.verdict)

    def remember_span(self, app: Any, event: signals.LockTaken) -> None:
        context = trace.get_current_span().get_span_context()
        if event.stage == "queued" and context.is_valid and context.trace_flags.sampled:
            carrier: dict[str, str] = {}
            _PROPAGATOR.inject(carrier)
            key, text = self._key(event.task_id), carrier["traceparent"]
            self._ask(lambda: self._dedupe.guard.store.swap(key, "", text, LINKED))

    def link_duplicate(self, app: Any, event: signals.PublishDropped) -> None:
        span = trace.get_current_span()
        if not span.is_recording():
            return
        incumbent = event.duplicate.task_id
        span.set_attribute("celery_dedupe.duplicate_of", incumbent)
        found = self._ask(lambda: self._dedupe.guard.store.look(self._key(incumbent)))
        published_in = trace.get_current_span(_PROPAGATOR.extract({"traceparent": found or ""}))
        if published_in.get_span_context().is_valid:
            named = {"celery_dedupe.duplicate_of": incumbent, "celery_dedupe.task": event.task}
            span.add_link(published_in.get_span_context(), named)

    def mark_run(self, task: Task[Any, Any], **_: Any) -> None:
        verdict: Run | Refusal | None = getattr(task.request, VERDICT, None)
        if verdict is None:
            return
        span = trace.get_current_span()
        word = "started" if isinstance(verdict, Run) else counted(verdict) or type(verdict).__name__.lower()
        span.set_attribute("celery_dedupe.start", word)
        if (found := getattr(verdict, "duplicate", None)) is not None:
            span.set_attribute("celery_dedupe.duplicate_of", found.task_id)

    def _key(self, task_id: str) -> str:
        return f"{self._dedupe.settings.prefix}:trace:{task_id}"

    def _ask(self, verb: Callable[[], T]) -> T | None:
        with suppress(StoreUnavailable):
            return self._dedupe.guard.store.first.ask(verb)
        return None
