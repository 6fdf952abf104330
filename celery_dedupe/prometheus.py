"""What was counted, for Prometheus (extra ``prometheus``): the whole cluster's numbers from any one process.

    from prometheus_client import REGISTRY
    from celery_dedupe.prometheus import DedupeCollector

    REGISTRY.register(DedupeCollector(app.dedupe))

It tells ``celery_dedupe_verdicts_total`` with the labels ``task`` and ``verdict``, a word of docs/metrics.md;
and ``celery_dedupe_store_up``: whether the claim store answered, 1 or 0.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from celery_dedupe.core.counts import lines
from celery_dedupe.errors import ConfigurationError, StoreUnavailable
from celery_dedupe.extension import Dedupe


class DedupeCollector(Collector):
    """Reads the claim store at each scrape. A process that is asked needs the app, and runs no task.

    Two processes that are asked tell the same numbers: let Prometheus ask one, or sum up by ``max``.

    Arguments:
        dedupe: ``app.dedupe``.

    Raises:
        ConfigurationError: nothing is counted, by ``dedupe_stats`` or ``dedupe_mode``.
    """

    def __init__(self, dedupe: Dedupe) -> None:
        if not dedupe.settings.stats or dedupe.settings.mode == "off":
            raise ConfigurationError(
                "nothing is counted, so there is nothing to collect: it takes dedupe_stats True, "
                "and a dedupe_mode other than 'off'"
            )
        self._dedupe = dedupe

    def describe(self) -> list[Metric]:
        """Nothing: else the store would be asked when this is registered, too."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every word of every task that was counted, those that are 0 too: a rate needs a first value."""
        up = GaugeMetricFamily("celery_dedupe_store_up", "Whether the claim store answered.")
        verdicts = CounterMetricFamily(
            "celery_dedupe_verdicts",
            "What became of publishes and starts of tasks under a rule.",
            labels=("task", "verdict"),
        )
        try:
            found = lines(self._dedupe.guard.counters.read())
        except StoreUnavailable:
            up.add_metric((), 0)
        else:
            up.add_metric((), 1)
            for line in found:
                for word, number in line.counts.items():
                    verdicts.add_metric((line.task, word), number)
        yield up
        yield verdicts
