"""Printed tables of the hybrid benches, and their single measurements."""

from collections.abc import Sequence

from bench.hybrid.simulated.running import Cell, normalised_s


def show(cells: Sequence[Cell]) -> None:
    """A table a setup and load."""
    last = None
    for cell in cells:
        point, row = cell.point, cell.row()
        if last is not None and (point.setup, point.lengths, point.has_batch) != last:
            print()
        last = point.setup, point.lengths, point.has_batch
        beside = "batch beside" if point.has_batch else "alone"
        print(
            f"{point.setup} {point.lengths} {point.rate_per_s:4g}/s {beside:12} {cell.system:24}"
            f" normalised {row['normalised_s'][0]:6.3f} s (p99 {row['normalised_p99_s'][0]:6.2f}),"
            f" TTFT p50 {row['ttft_p50_s'][0]:6.2f} s, TPOT p50 {row['tpot_p50_s'][0]:5.3f} s,"
            f" within {row['ttft_attainment'][0]:6.1%} {row['tpot_attainment'][0]:6.1%},"
            f" batch {row['batch_tokens_per_s'][0]:7.0f} tokens/s"
        )


def samples_of(cells: Sequence[Cell]) -> dict[str, list[float]]:
    """By point and system, the normalised latency of every seed."""
    return {
        f"{_name(cell)} {cell.system}": [round(normalised_s(each), 4) for each in cell.classes()]
        for cell in cells
    }


def _name(cell: Cell) -> str:
    point = cell.point
    alone = "" if point.has_batch else " alone"
    return f"{point.setup} {point.lengths} {point.rate_per_s:g}/s{alone}"
