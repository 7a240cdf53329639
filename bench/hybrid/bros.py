"""BROS's evaluation on our simulator: interactive requests beside batch requests in waves.

OPT-13B on 2 and OPT-30B on 4 A100-40GB, Llama-3-70B on 8 A100-80GB. Interactive requests come as a
Poisson process with lengths of ShareGPT's (or LMSYS's) mean and deviation, targets 0.4 s to the
first token and 0.2 s for each other one; beside them 256 batch requests of 512-1024 prompt and
32-128 output tokens, and the next 256 when all have ended. Ours against first come first served as
vLLM has it, classes in turn, vLLM's priorities, and ours without bidirectional blocks; then the
interactive requests alone.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.pop(0)  # the script's folder
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.harness import Bench, make_parser
from bench.hybrid.picture import draw
from bench.hybrid.running import Cell, Runner, claims_of, normalised_s
from bench.hybrid.setups import ENTRIES, LENGTHS, OURS, SETUPS, Point
from muxcluster.sim.sweep import Cache

_RATES = (1.0, 3.0, 5.0, 7.5, 10.0, 12.5, 15.0)
_QUICK_RATES = (5.0, 10.0)
_MAIN = "sharegpt"


def points_of(
    setups: Sequence[str], lengths: Sequence[str], rates: Sequence[float], seconds: float
) -> list[Point]:
    """Every setup under every load, then the interactive requests of the main lengths alone."""
    loaded = [Point(s, each, rate, seconds) for s in setups for each in lengths for rate in rates]
    alone = [Point(s, _MAIN, rate, seconds, has_batch=False) for s in setups for rate in rates]
    return loaded + (alone if _MAIN in lengths else [])


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


def main() -> None:
    """Simulate, compare, publish."""
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, help="virtual ones a case (10; 1 with --quick)")
    parser.add_argument("--seeds", type=int, help="repeats (5; 1 with --quick)")
    parser.add_argument("--setups", default=",".join(SETUPS), help="of %(default)s")
    parser.add_argument("--lengths", default=",".join(LENGTHS), help="of %(default)s")
    parser.add_argument("--processes", type=int, default=2, metavar="N")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="keep results, to go on later")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it, .svg, .png")
    bench = Bench(parser)
    options = bench.options
    quick = options.quick
    seconds = 60.0 * (options.minutes or (1 if quick else 10))
    num_seeds = options.seeds or (1 if quick else 5)
    seeds = tuple(range(options.seed, options.seed + num_seeds))
    setups = options.setups.split(",")[: 1 if quick else None]
    lengths = options.lengths.split(",")[: 1 if quick else None]
    points = points_of(setups, lengths, _QUICK_RATES if quick else _RATES, seconds)
    cells = Runner(Cache(options.cache), options.processes, seeds).cells(points, ENTRIES)
    show(cells)
    rows = [cell.row() for cell in cells]
    if options.plot is not None:
        draw([row for row in rows if row["lengths"] == lengths[0]], options.plot)
    main_cells = [cell for cell in cells if cell.point.lengths == lengths[0]]
    bench.publish(
        claims_of(main_cells),
        {
            f"{cell.point.setup} {cell.point.lengths} {cell.point.rate_per_s:g}/s"
            f"{'' if cell.point.has_batch else ' alone'} {cell.system}": [
                round(normalised_s(each), 4) for each in cell.classes()
            ]
            for cell in cells
        },
        virtual_s=seconds,
        num_seeds=num_seeds,
        ours=OURS,
        cells=rows,
    )


if __name__ == "__main__":
    main()
