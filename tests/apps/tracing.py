"""Tracers as a code base would install them. What they saw is noted in the ledger."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from celery.signals import celeryd_init

from tests.apps.assembly import AppUnderTest

TRACER = "DEDUPE_TEST_TRACER"


def install(under_test: AppUnderTest) -> None:
    """A ``setup``: installs the tracer that a variable of the process names.

    Without the variable nothing is done, so that the process of the test stays as it is: the tracers change
    Celery for good.
    """
    if name := os.environ.get(TRACER):
        TRACERS[name](under_test)


def opentelemetry(under_test: AppUnderTest) -> None:
    """Notes ``span started`` and ``span ended`` under each span's name."""
    from opentelemetry import trace
    from opentelemetry.instrumentation.celery import CeleryInstrumentor
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

    class Noted(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            under_test.ledger.note("span started", span.name)

        def on_end(self, span: Any) -> None:
            under_test.ledger.note("span ended", span.name)

    provider = TracerProvider()
    provider.add_span_processor(Noted())
    trace.set_tracer_provider(provider)
    CeleryInstrumentor().instrument()


def verdicts(under_test: AppUnderTest) -> None:
    """Notes ``span`` under each span's name, with its trace, our attributes and the traces it links to."""
    from opentelemetry import trace
    from opentelemetry.instrumentation.celery import CeleryInstrumentor
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

    from celery_dedupe import Dedupe
    from celery_dedupe.opentelemetry import instrument

    class Noted(SpanProcessor):
        def on_end(self, span: Any) -> None:
            ours = {
                name: value for name, value in span.attributes.items() if name.startswith("celery_dedupe.")
            }
            links = [f"{link.context.trace_id:032x}" for link in span.links]
            trace_id = f"{span.context.trace_id:032x}"
            under_test.ledger.note("span", span.name, trace=trace_id, attributes=ours, links=links)

    provider = TracerProvider()
    provider.add_span_processor(Noted())
    trace.set_tracer_provider(provider)
    instrument(Dedupe(under_test.app).init_app())
    CeleryInstrumentor().instrument()


def sentry(under_test: AppUnderTest) -> None:
    """Notes ``transaction`` with the outcome of its spans, and ``error`` under the error's type."""
    import sentry_sdk
    from sentry_sdk.integrations.celery import CeleryIntegration
    from sentry_sdk.transport import Transport

    class Noted(Transport):
        def capture_envelope(self, envelope: Any) -> None:
            for item in envelope.items:
                event = item.get_transaction_event() or item.get_event() or {}
                if event.get("type") == "transaction":
                    spans = [[span["op"], span.get("timestamp") is not None] for span in event["spans"]]
                    status = event["contexts"]["trace"].get("status")
                    under_test.ledger.note("transaction", event["transaction"], status=status, spans=spans)
                elif "exception" in event:
                    under_test.ledger.note("error reported", event["exception"]["values"][-1]["type"])

    sentry_sdk.init(
        dsn="http://key@localhost/1",
        transport=Noted,
        integrations=[CeleryIntegration()],
        traces_sample_rate=1.0,
    )


def sentry_late(under_test: AppUnderTest) -> None:
    """As Sentry's documentation has it for workers: after the extension is in."""
    celeryd_init.connect(lambda **_: sentry(under_test), weak=False)


TRACERS: dict[str, Callable[[AppUnderTest], None]] = {
    "opentelemetry": opentelemetry,
    "verdicts": verdicts,
    "sentry": sentry,
    "sentry_late": sentry_late,
}
