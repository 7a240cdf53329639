"""Metrics of the cluster's batch jobs, which are the same on every ingress."""

import asyncio
import contextlib
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from muxcluster.batch.service.interface import BatchService, Figures
from muxcluster.core.errors import MuxClusterError

PERIOD_S = 2.0


class BatchMetrics(Collector):
    """Collects the figures that `follow` read last."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._figures: Figures | None = None
        registry.register(self)

    @property
    def figures(self) -> Figures | None:
        """The figures read last; None before the first batch file, and without a service."""
        return self._figures

    async def follow(self, batch_service: BatchService) -> None:
        """Read the figures again and again, until cancelled; keep the last while none come."""
        while True:
            with contextlib.suppress(MuxClusterError):  # whoever uses it is told
                self._figures = await batch_service.figures() or self._figures
            await asyncio.sleep(PERIOD_S)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; none before the first batch file."""
        figures = self._figures
        if figures is None:
            return
        batches = GaugeMetricFamily("muxcluster:batches", "Batches of all time.", labels=["status"])
        for status, count in figures.by_status.items():
            batches.add_metric([status], count)
        lines = CounterMetricFamily(
            "muxcluster:batch_lines", "Lines of batches that have ended.", labels=["result"]
        )
        for result, count in figures.num_lines.items():
            lines.add_metric([result], count)
        tokens = CounterMetricFamily(
            "muxcluster:batch_tokens", "Tokens of batches' answers.", labels=["kind"]
        )
        for kind, count in figures.num_tokens.items():
            tokens.add_metric([kind], count)
        waiting = GaugeMetricFamily(
            "muxcluster:batches_waiting_for_disk", "Batches whose results the disk does not take."
        )
        waiting.add_metric([], figures.num_waiting)
        failures = CounterMetricFamily(
            "muxcluster:batch_storage_failures", "Writes of batch results that the disk refused."
        )
        failures.add_metric([], figures.num_storage_failures)
        stored = GaugeMetricFamily(
            "muxcluster:batch_stored_bytes", "Bytes of files, and of the results of open batches."
        )
        stored.add_metric([], figures.num_stored_bytes)
        yield from (batches, lines, tokens, waiting, failures, stored)
