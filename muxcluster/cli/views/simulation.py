"""Comparison of systems, in lines."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from muxcluster.cli.views.words import percent_text, seconds_text
from muxcluster.sim.report.report import (
    CaseReport,
    GroupReport,
    Number,
    SpreadReport,
    WakesReport,
)

_NOTHING = "-"
_FULL = 0.995  # lower shares are marked: some requests were not served or not finished


def comparison_lines(reports: Sequence[CaseReport], *, by_model: bool) -> Iterator[Text]:
    """Return a table for each rate scale: a line per system and, if wanted, one per model of it."""
    for scale in dict.fromkeys(report.rate_scale for report in reports):
        yield from _table([each for each in reports if each.rate_scale == scale], by_model)
        yield Text()


def _table(reports: Sequence[CaseReport], by_model: bool) -> Iterator[Text]:
    first = reports[0]
    total = first.total
    yield Text(
        f"rate scale {first.rate_scale:g}: {total.num_requests} requests in {first.duration_s:g} s,"
        f" {total.offered_per_s:.2f} req/s offered, seed {first.seed}",
        style="bold",
    )
    has_targets = any(each.total.target_attainment is not None for each in reports)
    head = _headings(first.slo_scale, has_targets)
    rows = [(row, report) for report in reports for row in _rows(report, has_targets, by_model)]
    widths = [max(len(row[i]) for row in (head, *(r for r, _ in rows))) for i in range(len(head))]
    yield line_of(head, widths, "bold")
    for row, _ in rows:
        yield line_of(row, widths)
    for report in reports:
        yield from _suffering(report)


def _headings(slo_scale: float, has_targets: bool) -> list[str]:
    return [
        "system",
        "req/s",
        "tokens/s",
        "served",
        "ended",
        "TTFT p50",
        "p99",
        "TPOT p50",
        "p99",
        "end to end p99",
        f"SLO x{slo_scale:g}",
        *(["targets"] if has_targets else []),
        "least served",
        "SM",
        "KV",
    ]


def _rows(report: CaseReport, has_targets: bool, by_model: bool) -> Iterator[list[str]]:
    least = _NOTHING if report.fairness is None else percent_text(_least_share(report))
    tail = [least, percent_text(report.use.sm), percent_text(report.use.kv)]
    yield [report.system, *_cells(report.total, report.slo_scale, has_targets), *tail]
    if by_model:
        for name, group in report.models.items():
            cells = _cells(group, report.slo_scale, has_targets)
            yield [f"  {name}", *cells, "", "", ""]


def _least_share(report: CaseReport) -> float:
    return min(group.served_share or 0.0 for group in report.models.values() if group.num_requests)


def _cells(group: GroupReport, slo_scale: float, has_targets: bool) -> list[str]:
    return [
        f"{group.requests_per_s:.2f}",
        f"{group.tokens_per_s:.0f}",
        share_cell(group.served_share),
        share_cell(group.finished_share),
        *_spread(group.ttft),
        *_spread(group.tpot),
        seconds_cell(group.latency.p99),
        share_cell(group.attainment[f"{slo_scale:g}"]),
        *([share_cell(group.target_attainment)] if has_targets else []),
    ]


def _spread(spread: SpreadReport) -> tuple[str, str]:
    return seconds_cell(spread.p50), seconds_cell(spread.p99)


def seconds_cell(seconds: Number) -> str:
    """Format seconds; a dash for None."""
    return _NOTHING if seconds is None else seconds_text(seconds)


def share_cell(share: Number) -> str:
    """Format a share; a dash for None."""
    return _NOTHING if share is None else f"{share:.1%}"


def line_of(cells: Sequence[str], widths: Sequence[int], style: str = "") -> Text:
    """Join the cells: the first aligned left, the others right."""
    first, *rest = (
        cell.ljust(width) if column == 0 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return Text("  ".join([first, *rest]).rstrip(), style=style)


def _suffering(report: CaseReport) -> Iterator[Text]:
    """Name the worst-served models, and requests that the figures leave out."""
    if report.worst_model is None:
        yield Text(f"  {report.system}: nobody asked for anything")
        return
    group = report.models[report.worst_model]
    attained = share_cell(group.attainment[f"{report.slo_scale:g}"])
    text = f"  {report.system}: {report.worst_model} suffers most: {attained} within the SLO, "
    text += f"{share_cell(group.served_share)} served"
    total = report.total
    if total.num_refused:
        text += f"; {total.num_refused} requests refused as too long"
    late = total.num_requests - total.num_refused - total.latency.count
    if late:
        text += f"; {late} not ended at {2 * report.duration_s:g} s, which no latency counts"
    is_bad = (group.served_share or 0.0) < _FULL
    yield Text(text, style="yellow" if is_bad else "")
    if report.wakes is not None and report.wakes.num_wakes:
        yield Text(f"  {report.system}: {_wakes_text(report.wakes)}")


def _wakes_text(wakes: WakesReport) -> str:
    text = f"weights woken {wakes.num_wakes} times, in {seconds_text(wakes.waking_s)} in all"
    if wakes.num_ahead:
        text += f"; {wakes.num_ahead} ahead of requests, {wakes.num_ahead_used} of them used"
    return text
