"""The demo's table: one line per model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from muxcluster.demo.replay import Sample


@dataclass(frozen=True, slots=True)
class ModelReport:
    """A model's part of the burst; seconds; NaN where nothing was measured."""

    model: str
    num_requests: int
    num_failed: int
    ttft_p50_s: float
    ttft_p99_s: float
    tpot_p50_s: float
    tpot_p99_s: float
    tokens_per_s: float  # output tokens over the time of the whole burst
    quota_start: int
    quota_end: int


def summarise(
    samples: Sequence[Sample], quota_start: Mapping[str, int], quota_end: Mapping[str, int]
) -> list[ModelReport]:
    """One report per model of `quota_start`, in its order."""
    ends = [sample.end_s for sample in samples]
    span_s = max(ends, default=0.0) - min((s.start_s for s in samples), default=0.0)
    return [
        _of_model(
            model,
            [sample for sample in samples if sample.model == model],
            span_s,
            (quota_start[model], quota_end[model]),
        )
        for model in quota_start
    ]


def _of_model(
    model: str, samples: Sequence[Sample], span_s: float, quotas: tuple[int, int]
) -> ModelReport:
    answered = [sample for sample in samples if sample.error is None]
    ttft_p50, ttft_p99 = _percentiles([sample.ttft_s for sample in answered])
    tpots = [sample.tpot_s for sample in answered]
    tpot_p50, tpot_p99 = _percentiles([tpot for tpot in tpots if tpot is not None])
    return ModelReport(
        model=model,
        num_requests=len(samples),
        num_failed=len(samples) - len(answered),
        ttft_p50_s=ttft_p50,
        ttft_p99_s=ttft_p99,
        tpot_p50_s=tpot_p50,
        tpot_p99_s=tpot_p99,
        tokens_per_s=sum(s.output_tokens for s in answered) / max(span_s, 1e-9),
        quota_start=quotas[0],
        quota_end=quotas[1],
    )


def _percentiles(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        return float("nan"), float("nan")
    low, high = np.percentile(np.asarray(values), [50, 99])
    return float(low), float(high)


def table(reports: Sequence[ModelReport]) -> Table:
    """Format the reports, in milliseconds."""
    grid = Table(title="The burst, per model (p50 / p99 in ms; KV quota in blocks, start → end)")
    grid.add_column("model", no_wrap=True)
    for name in ("requests", "TTFT", "TPOT", "tokens/s", "KV quota"):
        grid.add_column(name, justify="right", no_wrap=True)
    for report in reports:
        failed = f" ({report.num_failed} failed)" if report.num_failed else ""
        grid.add_row(
            report.model,
            f"{report.num_requests}{failed}",
            _pair_ms(report.ttft_p50_s, report.ttft_p99_s),
            _pair_ms(report.tpot_p50_s, report.tpot_p99_s),
            f"{report.tokens_per_s:.1f}",
            f"{report.quota_start} → {report.quota_end}",
        )
    return grid


def _pair_ms(p50_s: float, p99_s: float) -> str:
    return f"{p50_s * 1000:.0f} / {p99_s * 1000:.0f}"
