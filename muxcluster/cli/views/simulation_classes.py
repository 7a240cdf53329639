"""Comparison of systems by class, interactive and batch, in lines."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from muxcluster.cli.views.simulation import line_of, seconds_cell, share_cell
from muxcluster.cli.views.words import seconds_text
from muxcluster.sim.report.report import CaseReport, ClassesReport

_HEAD = (
    "system",
    "TTFT p50",
    "p99",
    "TPOT p50",
    "p99",
    "per token",
    "p99",
    "in time: first",
    "others",
    "both",
    "batch tokens/s",
    "req/s",
    "lent",
    "saved",
    "recomputed",
)


def class_lines(reports: Sequence[CaseReport]) -> Iterator[Text]:
    """Return a table for each rate scale, a line per system."""
    for scale in dict.fromkeys(report.rate_scale for report in reports):
        yield from _table([each for each in reports if each.rate_scale == scale])
        yield Text()
    yield Text(
        "in time: of all interactive requests, by the targets of models that have some. per token: "
        "end to end over output tokens. batch tokens: of prompts and output. lent: KV columns that "
        "batch requests gave to interactive ones; saved: token slots copied to host memory; "
        "recomputed: tokens computed twice."
    )


def _table(reports: Sequence[CaseReport]) -> Iterator[Text]:
    first = reports[0]
    rows = [_cells(report, report.classes) for report in reports if report.classes is not None]
    count = next((each.classes.interactive for each in reports if each.classes is not None), None)
    if count is not None:
        yield Text(
            f"rate scale {first.rate_scale:g}: {count.num_requests} interactive requests in "
            f"{first.duration_s:g} s, {count.offered_per_s:.2f} req/s, seed {first.seed}",
            style="bold",
        )
    widths = [max(len(row[i]) for row in (_HEAD, *rows)) for i in range(len(_HEAD))]
    yield line_of(_HEAD, widths, "bold")
    for row in rows:
        yield line_of(row, widths)
    yield from _makespans(reports)


def _makespans(reports: Sequence[CaseReport]) -> Iterator[Text]:
    """Say when a batch job, which is there as a whole from the start, had ended."""
    for report in reports:
        batch = None if report.classes is None else report.classes.batch
        if batch is not None and batch.num_waves == 1 and batch.latency.count:
            count, last_s = batch.latency.count, batch.latency.quantiles[-1]
            yield Text(f"  {report.system}: {count} batch requests ran in {seconds_text(last_s)}")


def _cells(report: CaseReport, classes: ClassesReport) -> list[str]:
    mine, batch, sharing = classes.interactive, classes.batch, classes.sharing
    return [
        report.system,
        seconds_cell(mine.ttft.p50),
        seconds_cell(mine.ttft.p99),
        seconds_cell(mine.tpot.p50),
        seconds_cell(mine.tpot.p99),
        seconds_cell(mine.normalised.mean),
        seconds_cell(mine.normalised.p99),
        share_cell(mine.ttft_attainment),
        share_cell(mine.tpot_attainment),
        share_cell(mine.attainment),
        f"{batch.tokens_per_s:.0f}",
        f"{batch.requests_per_s:.2f}",
        str(sharing.num_lent_columns),
        str(sharing.num_saved_slots),
        str(sharing.num_recomputed_tokens),
    ]
