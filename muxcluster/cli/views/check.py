"""`place --check`: what the plan predicts beside what a simulation of it shows."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from muxcluster.cli.placing.reports import Judged
from muxcluster.cli.views.words import percent_text, rate_text, seconds_text
from muxcluster.placement.estimator import Quantiles
from muxcluster.placement.review.assess import ModelReport
from muxcluster.sim.cases.check import Check, Observed

_HEADINGS = ("model", "req/s", "in SLO", "TTFT p50", "p95", "TPOT p50", "p95")
_UNKNOWN = "-"
_WITHIN = 0.95  # share of the requests that a plan promises within a target


def check_lines(judged: Judged, check: Check) -> Iterator[Text]:
    """Compare the plan with its simulation, a line for all models and one for each."""
    span = check.span
    yield Text(
        f"simulated: {check.total.num_requests} requests of {span.window_s:.0f} s, after "
        f"{span.warmup_s:.0f} s of warm-up; each cell: planned / simulated",
        style="bold",
    )
    rows = [_HEADINGS, _total_row(judged, check.total)]
    rows += [_row(judged, name, seen) for name, seen in check.models.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        style = "red" if row is not rows[0] and _is_worse(judged, row[0], check) else ""
        yield Text("  " + "  ".join(cells), style=style)
    yield from _batch_rows(judged, check)


def _batch_rows(judged: Judged, check: Check) -> Iterator[Text]:
    """Planned and simulated tokens/s of batch work."""
    for name, seen in check.batch.items():
        planned = sum(
            model.backlog_tokens_per_s or 0.0
            for unit in judged.plan.units
            for model in unit.models
            if model.name == name
        )
        yield Text(f"  batch work of {name}: {planned:.0f} / {seen:.0f} tokens/s")


def _total_row(judged: Judged, seen: Observed) -> tuple[str, ...]:
    nothing = (_UNKNOWN,) * (len(_HEADINGS) - 3)
    served = f"{rate_text(judged.plan.throughput)} / {rate_text(seen.served_per_s)}"
    return ("all", served, f"{_UNKNOWN} / {percent_text(seen.within)}", *nothing)


def _row(judged: Judged, name: str, seen: Observed) -> tuple[str, ...]:
    served = f"{rate_text(judged.served[name])} / {rate_text(seen.served_per_s)}"
    reports = _reports(judged, name)
    within = _UNKNOWN if not reports else "yes" if _promises(reports) else "no"
    return (
        name,
        served,
        f"{within} / {percent_text(seen.within)}",
        *_times([report.ttft_s for report in reports], seen.ttft_s),
        *_times([report.tpot_s for report in reports], seen.tpot_s),
    )


def _times(planned: Sequence[Quantiles], seen: tuple[float, float]) -> tuple[str, str]:
    """Median and 95th percentile; planned ones of the slowest unit."""
    worst = max(planned, key=lambda each: each.high, default=None)
    expected = (None, None) if worst is None else (worst.median, worst.high)
    median, high = (
        f"{_time(plan)} / {_time(simulated)}"
        for plan, simulated in zip(expected, seen, strict=True)
    )
    return median, high


def _time(seconds: float | None) -> str:
    return _UNKNOWN if seconds is None or seconds != seconds else seconds_text(seconds)


def _reports(judged: Judged, name: str) -> list[ModelReport]:
    units = judged.reports.values()
    return [model for unit in units for model in unit.models if model.name == name]


def _promises(reports: Sequence[ModelReport]) -> bool:
    """Return whether the plan serves all of the model within its targets."""
    margins = [each for report in reports for each in (report.ttft_margin, report.tpot_margin)]
    return all(report.share >= 1 - 1e-9 for report in reports) and all(
        margin is None or margin >= 0 for margin in margins
    )


def _is_worse(judged: Judged, name: str, check: Check) -> bool:
    """Return whether the simulation breaks a promise of the plan."""
    seen = check.models.get(name)
    if seen is None:
        return False
    reports = _reports(judged, name)
    return bool(reports) and _promises(reports) and seen.within < _WITHIN
