"""Trade-off of the hybrid packing's parameters: interactive latency against batch tokens.

`batch_stretch`, by how many times its time batch rows may lengthen a job, swept; beside it the
paper's additive size of a job over its two parameters, where it starts and by how much it grows.
All on BROS's ShareGPT lengths, against first come first served; one seed.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.pop(0)  # the script's folder
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.harness import Bench, Claim, make_parser
from bench.hybrid.simulated.claims import changes
from bench.hybrid.simulated.knobs_picture import draw
from bench.hybrid.simulated.running import Cell, Runner, batch_tokens_per_s, normalised_s
from bench.hybrid.simulated.setups import ENTRIES, OURS, Entry, Point
from bench.hybrid.simulated.table import samples_of, show
from muxcluster.sim.cases.sweep import Cache

PREDICTED, ADDITIVE = "predicted", "additive"
# One where memory is short and one where time is; interactive requests alone are no burden.
_POINTS = (("opt-13b", 5.0), ("llama-3-70b", 5.0))
_STRETCHES = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
_FIRST_ROWS = (8, 16, 32)
_MORE_ROWS = (2, 4, 8)


def entries(stretches: Sequence[float]) -> list[Entry]:
    """`fcfs`, and a system for every setting."""
    (fcfs,) = (entry for entry in ENTRIES if entry.name == "fcfs")
    predicted = [
        Entry(f"{PREDICTED} {value:g}", "mixed:packing=hybrid", {"batch_stretch": value})
        for value in stretches
    ]
    additive = [
        Entry(
            f"{ADDITIVE} {first}+{more}",
            "mixed:packing=additive",
            {"first_rows": first, "more_rows": more},
        )
        for first in _FIRST_ROWS
        for more in _MORE_ROWS
    ]
    return [fcfs, *predicted, *additive]


def trades(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """By system and point: the cut of normalised latency against `fcfs`, the share of its batch
    tokens that are kept, and attainment."""
    return [
        {
            "setup": cell.point.setup,
            "rate_per_s": cell.point.rate_per_s,
            "system": cell.system,
            "latency_cut": round(_against(cells, cell, normalised_s), 4),
            "batch_kept": round(1.0 - _against(cells, cell, batch_tokens_per_s), 4),
            "ttft_attainment": cell.row()["ttft_attainment"][0],
            "tpot_attainment": cell.row()["tpot_attainment"][0],
        }
        for cell in cells
        if cell.system != "fcfs"
    ]


def _against(cells: Sequence[Cell], cell: Cell, figure: Any) -> float:
    return changes(cells, "fcfs", figure, cell.system)[cell.point]


def main() -> None:
    """Simulate, draw, publish."""
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="virtual ones (%(default)s)")
    parser.add_argument("--processes", type=int, default=2, metavar="N")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="keep results, to go on later")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it, .svg, .png")
    bench = Bench(parser)
    options = bench.options
    seconds = 60.0 * (0.5 if options.quick else options.minutes)
    points = [Point(setup, "sharegpt", rate, seconds) for setup, rate in _POINTS]
    runner = Runner(Cache(options.cache), options.processes, (options.seed,))
    cells = runner.cells(points[: 1 if options.quick else None], entries(_STRETCHES))
    show(cells)
    rows = trades(cells)
    if options.plot is not None:
        draw(rows, options.plot)
    bench.publish(
        _claims(rows), samples_of(cells), virtual_s=seconds, ours=OURS, trades=rows, num_seeds=1
    )


def _claims(rows: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """The widest and the narrowest that batch rows get, on each setup."""
    return [
        Claim(f"{name}_{row['setup']}_stretch_{row['system'].split()[1]}", row[name], "share")
        for row in rows
        if row["system"] in {f"{PREDICTED} {value:g}" for value in (_STRETCHES[0], _STRETCHES[-1])}
        for name in ("latency_cut", "batch_kept")
    ]


if __name__ == "__main__":
    main()
