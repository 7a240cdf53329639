"""Measurement of jobs side by side, for `muxcluster profile`."""

import statistics
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from muxcluster.cli.profiling.subjects import Subject
from muxcluster.engine.profile.grid import Grid, Point
from muxcluster.engine.profile.pairs import (
    PairPoint,
    measure_pairs,
    pair_points,
    paired_spec,
)
from muxcluster.placement.cost import Pair, PairedJob

COLUMNS = ("prefill of", "on", "decode of", "on", "prefill slower", "decode slower")


def points_of(subjects: Sequence[Subject], grid: Grid) -> tuple[PairPoint, ...]:
    """Return the jobs to run side by side; none if all jobs run in one process, one at a time."""
    specs = [subject.spec for subject in subjects]
    return () if specs[0].partition == "none" else pair_points(specs, grid)


def measured_pairs(
    subjects: Sequence[Subject],
    points: Sequence[PairPoint],
    repeats: int,
    on_point: Callable[[str, Point], None],
) -> tuple[Pair, ...]:
    """Measure the pairs. on_point: called with the model and the point of the prefill and of the
    decode."""
    if not points:
        return ()

    def tell(done: PairPoint) -> None:
        on_point(done.prefill_model, done.prefill)
        on_point(done.decode_model, done.decode)

    spec = paired_spec([subject.spec for subject in subjects], points)
    return measure_pairs(spec, points, repeats, tell)


def show_pairs(pairs: Sequence[Pair], console: Console) -> None:
    """Print the slowdown of each pair, a line a pair."""
    if not pairs:
        return
    table = Table(*COLUMNS, title="side by side", title_justify="left", box=None, pad_edge=False)
    for pair in pairs:
        where = (pair.prefill.model, pair.prefill.share), (pair.decode.model, pair.decode.share)
        cells = [text for model, share in where for text in (model, f"{share:.0%}")]
        table.add_row(*cells, _slower(pair.prefill), _slower(pair.decode))
    console.print(table)


def _slower(job: PairedJob) -> str:
    return f"{statistics.median(job.beside) / statistics.median(job.alone) - 1:+.0%}"
