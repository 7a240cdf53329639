"""The readable plan: a line per unit, and one below it per model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from muxcluster.cli.placing.reports import Judged
from muxcluster.cli.views.words import (
    bar_text,
    gib_text,
    gpus_text,
    percent_text,
    rate_text,
    seconds_text,
)
from muxcluster.core.residency import Residency
from muxcluster.placement.estimator import Quantiles
from muxcluster.placement.plan import PlannedModel, PlannedUnit
from muxcluster.placement.review.assess import ModelReport, UnitReport

HEADINGS = (
    "model",
    "req/s",
    "prefill SM",
    "decode SM",
    "batch / most",
    "KV quota, tokens",
    "TTFT p50, p95 (to SLO)",
    "TPOT p50, p95 (to SLO)",
)
# One more column where not all models of a unit are resident at once.
_RESIDENCY = "weights: wakes/h x seconds, wait p50, p95"
_BAD = "bold red"
_UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class _Cell:
    text: str
    is_bad: bool = False


def plan_lines(judged: Judged) -> Iterator[Text]:
    """Describe the plan; only what is short of the demand or the SLO is coloured."""
    rows = {unit.id: _rows(judged, unit) for unit in judged.plan.units}
    every = [row for block in rows.values() for row in block]
    is_parking = any(unit.resident_bytes for unit in judged.plan.units)
    headings = [*HEADINGS, _RESIDENCY] if is_parking else [*HEADINGS]
    widths = [
        max(len(heading), *(len(row[column].text) for row in every))
        for column, heading in enumerate(headings)
    ]
    yield _line([_Cell(heading) for heading in headings], widths, "bold")
    for unit in judged.plan.units:
        yield _unit_line(judged, unit)
        for row in rows[unit.id]:
            yield _line(row[: len(widths)], widths)


def _line(cells: Sequence[_Cell], widths: Sequence[int], style: str = "") -> Text:
    line = Text("  ", style=style)
    for column, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        text = cell.text.ljust(width) if column == 0 else cell.text.rjust(width)
        line.append(text + "  ", style=_BAD if cell.is_bad else None)
    line.rstrip()
    return line


def _unit_line(judged: Judged, unit: PlannedUnit) -> Text:
    report = judged.reports.get(unit.id)
    line = Text()
    line.append(unit.id, style="bold cyan")
    line.append(f"  {unit.node}: {gpus_text(unit.gpus)}  ")
    line.append(f"{len(unit.gpus)} x {judged.gpu_name(unit)}, tp {unit.tp}  ")
    line.append(f"{_lane_text(unit)}  ")
    if report is None:
        line.append("(not judged: our estimator counts more memory)", style="yellow")
        return line
    load = f"{bar_text(report.load)} {percent_text(report.load)}"
    line.append(load, style=_BAD if report.load > 1 else "green")
    line.append(f"  {_limit(judged, report)}; weights {gib_text(report.weight_bytes)}")
    line.append(f", KV {gib_text(report.kv_bytes)} of {gib_text(report.memory_bytes)}")
    line.append(_residency_text(report))
    if unit.unproven:
        line.append(f"; unproven: {unit.unproven}", style="yellow")
    return line


def _residency_text(report: UnitReport) -> str:
    """Say how many of the models that may be parked are resident at once, if not all."""
    if report.num_at_once is None:
        return ""
    num_movable = sum(model.residency is not Residency.ALWAYS for model in report.models)
    text = (
        f"; at least {report.num_at_once} of {num_movable} models that may be parked are resident "
        f"at once, weights of all in {gib_text(report.parked_bytes)} of host memory"
    )
    if not report.equal_units:
        return text
    others = ", ".join(report.equal_units)
    return f"{text}; the same models on {others}: a request goes where the weights are"


def _lane_text(unit: PlannedUnit) -> str:
    """Say how the unit runs its jobs; on which shares stands beside its models."""
    if unit.execution is None:
        return "lane by default"
    can_share = len(unit.execution.workers) > 1
    text = f"{unit.execution.lane} on shared SMs" if can_share else unit.execution.lane
    if can_share and all(model.prefill_sm == 1 for model in unit.models):
        text = "mixed (can share SMs)"
    return f"{text}, unproven" if unit.execution.unproven else text


def _limit(judged: Judged, report: UnitReport) -> str:
    if judged.plan.method == "compat":
        return "load and latencies by our estimator, the rest by the reference's"
    return f"limited by {report.limit}" if report.limit else "all is served"


def _rows(judged: Judged, unit: PlannedUnit) -> list[list[_Cell]]:
    report = judged.reports.get(unit.id)
    expected = {} if report is None else {model.name: model for model in report.models}
    return [_row(judged, unit, model, expected.get(model.name)) for model in unit.models]


def _row(
    judged: Judged, unit: PlannedUnit, model: PlannedModel, expected: ModelReport | None
) -> list[_Cell]:
    kv_dtype = judged.demands[model.name].shape.kv_dtype
    stored = "" if kv_dtype == "auto" else f" in {kv_dtype}"
    quota = gib_text(model.quota_blocks * judged.block_bytes(unit))
    most = _UNKNOWN if expected is None else str(expected.max_batch)
    return [
        _Cell(model.name),
        _rate_cell(judged, model, expected),
        _Cell(percent_text(model.prefill_sm)),
        _Cell(percent_text(model.decode_sm)),
        _Cell(f"{model.batch:.1f} / {most}"),
        _Cell(f"{quota}, {judged.tokens(unit, model):,}{stored}"),
        *_late_cells(expected),
        _residency_cell(expected),
    ]


def _residency_cell(expected: ModelReport | None) -> _Cell:
    """Say how often a model is woken, how long that takes and what its requests wait for it."""
    if expected is None or expected.residency is Residency.ALWAYS:
        return _Cell("stays")
    waits = expected.waking_s
    return _Cell(
        f"{expected.residency}: {expected.wakes_per_h:.3g} x {seconds_text(expected.wake_s)}, "
        f"{seconds_text(waits.median)}, {seconds_text(waits.high)}"
    )


def _rate_cell(judged: Judged, model: PlannedModel, expected: ModelReport | None) -> _Cell:
    offered = judged.demands[model.name].rate if expected is None else expected.offered
    is_short = model.throughput < offered * (1 - 1e-6)
    return _Cell(f"{rate_text(model.throughput)} of {rate_text(offered)}", is_short)


def _late_cells(expected: ModelReport | None) -> tuple[_Cell, _Cell]:
    if expected is None:
        return _Cell(_UNKNOWN), _Cell(_UNKNOWN)
    return (
        _late_cell(expected.ttft_s, expected.ttft_margin),
        _late_cell(expected.tpot_s, expected.tpot_margin),
    )


def _late_cell(late: Quantiles, margin: float | None) -> _Cell:
    text = f"{seconds_text(late.median)}, {seconds_text(late.high)}"
    if margin is None:
        return _Cell(text)
    return _Cell(f"{text} ({margin:+.0%})", margin < 0)
