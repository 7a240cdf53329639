"""BROS's evaluation on our simulator: interactive requests beside batch requests in waves.

OPT-13B on 2 and OPT-30B on 4 A100-40GB, Llama-3-70B on 8 A100-80GB. Interactive requests come as a
Poisson process with lengths of ShareGPT's (or LMSYS's) mean and deviation, targets 0.4 s to the
first token and 0.2 s for each other one; beside them 256 batch requests of 512-1024 prompt and
32-128 output tokens, and the next 256 when all have ended. Ours against first come first served as
vLLM has it, classes in turn, and vLLM's priorities; without bidirectional blocks on OPT-30B at
10 requests/s; then the interactive requests alone. On LMSYS's lengths only the first two.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.pop(0)  # the script's folder
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.harness import Bench, make_parser
from bench.hybrid.picture import draw
from bench.hybrid.simulated.claims import all_claims
from bench.hybrid.simulated.running import Cell, Runner
from bench.hybrid.simulated.setups import (
    ALONE,
    APART_ENTRY,
    COMPARED,
    ENTRIES,
    LENGTHS,
    OURS,
    SETUPS,
    WAVE,
    Entry,
    Point,
)
from bench.hybrid.simulated.table import samples_of, show
from muxcluster.sim.cases.sweep import Cache

_RATES = (1.0, 3.0, 5.0, 7.5, 10.0, 12.5, 15.0)
_QUICK_RATES = (3.0, 5.0)
_MAIN = "sharegpt"
_APART = "opt-30b", 10.0  # Where the paper switches bidirectional blocks off


@dataclass(frozen=True, slots=True)
class Slice:
    """What of the evaluation is run."""

    setups: Sequence[str]
    lengths: Sequence[str]
    rates: Sequence[float]
    seconds: float
    wave: int
    systems: Sequence[Entry]

    def loaded(self, lengths: str) -> list[Point]:
        """Every setup at every rate, with batch load."""
        return [
            Point(setup, lengths, rate, self.seconds, wave=self.wave)
            for setup in self.setups
            for rate in self.rates
            if lengths in self.lengths
        ]

    def alone(self) -> list[Point]:
        """The interactive requests of the main lengths alone."""
        return [
            Point(setup, _MAIN, rate, self.seconds, has_batch=False)
            for setup in self.setups
            for rate in self.rates
            if _MAIN in self.lengths
        ]


def _cells(runner: Runner, asked: Slice) -> list[Cell]:
    main = asked.loaded(_MAIN)
    apart = [point for point in main if (point.setup, point.rate_per_s) == _APART]
    others = [point for name in asked.lengths if name != _MAIN for point in asked.loaded(name)]
    return [
        *runner.cells(main, asked.systems),
        *runner.cells(apart, (APART_ENTRY,)),
        *runner.cells(asked.alone(), ALONE),
        *runner.cells(others, COMPARED),
    ]


def main() -> None:
    """Simulate, compare, publish."""
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, help="virtual ones a case (10; 2 with --quick)")
    parser.add_argument("--seeds", type=int, help="repeats (5; 1 with --quick)")
    parser.add_argument("--setups", default=",".join(SETUPS), help="of %(default)s")
    parser.add_argument("--lengths", default=",".join(LENGTHS), help="of %(default)s")
    parser.add_argument("--rates", help="requests/s (1 to 15; 3,5 with --quick)")
    parser.add_argument("--wave", type=int, default=WAVE, help="batch requests at once")
    parser.add_argument("--few", action="store_true", help="only systems that the paper compares")
    parser.add_argument("--processes", type=int, default=2, metavar="N")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="keep results, to go on later")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it, .svg, .png")
    bench = Bench(parser)
    options = bench.options
    quick = options.quick
    seconds = 60.0 * (options.minutes or (2 if quick else 10))
    num_seeds = options.seeds or (1 if quick else 5)
    seeds = tuple(range(options.seed, options.seed + num_seeds))
    rates = _QUICK_RATES if quick else _RATES
    if options.rates is not None:
        rates = tuple(float(rate) for rate in options.rates.split(","))
    asked = Slice(
        options.setups.split(",")[: 1 if quick else None],
        options.lengths.split(",")[: 1 if quick else None],
        rates,
        seconds,
        options.wave,
        COMPARED if options.few else ENTRIES,
    )
    runner = Runner(Cache(options.cache), options.processes, seeds)
    cells = _cells(runner, asked)
    show(cells)
    rows = [cell.row() for cell in cells]
    if options.plot is not None:
        draw([row for row in rows if row["lengths"] == asked.lengths[0]], options.plot)
    bench.publish(
        all_claims(cells, _MAIN),
        samples_of(cells),
        virtual_s=seconds,
        num_seeds=num_seeds,
        ours=OURS,
        cells=rows,
    )


if __name__ == "__main__":
    main()
