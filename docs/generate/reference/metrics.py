"""docs/reference/metrics.md: every metric of /metrics, read from the registry itself."""

from typing import Any

from prometheus_client.metrics_core import Metric

from docs.generate.markdown import page, table
from muxcluster.batch.service.interface import Figures
from muxcluster.http.live.conditions import Conditions
from muxcluster.http.metrics.batches import BatchMetrics
from muxcluster.http.metrics.requests import Metrics
from muxcluster.http.metrics.units import UnitMetrics

_INTRODUCTION = """\
# Metrics

`GET /metrics` answers in Prometheus's text format. Names, labels and buckets are vLLM's where the
meaning is the same, so that its dashboards work; ours begin with `muxcluster:`. `engine` is the
unit's id, or `0` for what the ingress measures. Every ingress counts its own calls; the metrics of
units and of batches are the same on each. How to watch a server:
[Monitoring](../guides/monitoring.md)."""


class _WithFigures(BatchMetrics):
    """Batch metrics as after a first batch; a service that never had one shows none."""

    def __init__(self, registry: Any) -> None:
        super().__init__(registry)
        self._figures = Figures({}, {}, {}, 0, 0)


def metrics_page() -> str:
    """Return the page."""
    metrics = Metrics()
    UnitMetrics(metrics.registry, list)
    _WithFigures(metrics.registry)
    Conditions(metrics.registry, list, list, lambda since_s: {})
    found = {metric.name: metric for metric in metrics.registry.collect()}
    labels = {
        name: collector._labelnames
        for collector, names in metrics.registry._collector_to_names.items()
        if hasattr(collector, "_labelnames")
        for name in names
    }
    rows = [_row(found[name], labels.get(name)) for name in sorted(found)]
    return page(_INTRODUCTION, table(("metric", "type", "labels", "meaning"), rows))


def _row(metric: Metric, labels: tuple[str, ...] | None) -> tuple[str, str, str, str]:
    shown = labels if labels is not None else getattr(metric, "_labelnames", ())
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    return (
        f"`{name}`",
        metric.type,
        ", ".join(f"`{each}`" for each in shown),
        metric.documentation,
    )
