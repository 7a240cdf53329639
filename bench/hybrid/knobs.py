"""Trade-off of the hybrid packing: interactive latency against batch tokens, set by the targets.

Targets bound the batch work, so they are the knob: BROS's 0.4 s to the first token and 0.2 s for
each other one, halved, doubled and so on; beside them the paper's additive size of a job over its
two parameters, where it starts and by how much it grows, under the published targets. All on BROS's
ShareGPT lengths, against first come first served; one seed.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.pop(0)  # the script's folder
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.harness import Bench, Claim, make_parser
from bench.hybrid.simulated.knobs_picture import draw
from bench.hybrid.simulated.running import (
    Cell,
    Figure,
    Runner,
    batch_tokens_per_s,
    normalised_s,
)
from bench.hybrid.simulated.setups import ENTRIES, OURS, Entry, Point
from bench.hybrid.simulated.table import samples_of, show
from muxcluster.sim.cases.sweep import Cache

TARGETS, ADDITIVE = "targets", "additive"
# One where memory is short and one where time is; interactive requests alone are no burden.
_POINTS = (("opt-13b", 5.0), ("llama-3-70b", 5.0))
_PARTS = (0.25, 0.35, 0.5, 0.7, 1.0, 2.0)  # of the published targets
_FIRST_ROWS = (8, 16, 32)
_MORE_ROWS = (2, 4, 8)


def targets(part: float) -> Entry:
    """Ours, where targets are `part` of the published ones."""
    return Entry(f"{TARGETS} {part:g}", "mixed:packing=hybrid")


def additive() -> list[Entry]:
    """The paper's size of a job, a system for every setting."""
    return [
        Entry(
            f"{ADDITIVE} {first}+{more}",
            "mixed:packing=additive",
            {"first_rows": first, "more_rows": more},
        )
        for first in _FIRST_ROWS
        for more in _MORE_ROWS
    ]


def simulated(
    runner: Runner, points: Sequence[tuple[str, float]], seconds: float, parts: Sequence[float]
) -> list[Cell]:
    """`fcfs`, ours at every part of the targets and the additive sizes, a point after another."""
    (fcfs,) = (entry for entry in ENTRIES if entry.name == "fcfs")
    found = []
    for setup, rate in points:
        published = Point(setup, "sharegpt", rate, seconds)
        found += runner.cells([published], [fcfs])
        for part in parts:
            found += runner.cells([replace(published, strictness=1.0 / part)], [targets(part)])
        found += runner.cells([published], additive())
    return found


def trades(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """By system and setup: the cut of normalised latency against `fcfs`, the share of its batch
    tokens that are kept, and attainment of the system's own targets."""
    fcfs = {cell.point.setup: cell for cell in cells if cell.system == "fcfs"}
    return [
        {
            "setup": cell.point.setup,
            "rate_per_s": cell.point.rate_per_s,
            "system": cell.system,
            "latency_cut": round(_cut(fcfs[cell.point.setup], cell, normalised_s), 4),
            "batch_kept": round(1.0 - _cut(fcfs[cell.point.setup], cell, batch_tokens_per_s), 4),
            "ttft_attainment": cell.row()["ttft_attainment"][0],
            "tpot_attainment": cell.row()["tpot_attainment"][0],
        }
        for cell in cells
        if cell.system != "fcfs"
    ]


def _cut(before: Cell, after: Cell, figure: Figure) -> float:
    """Return by what share a figure is less, the mean over seeds."""
    pairs = zip(before.classes(), after.classes(), strict=True)
    return fmean(1.0 - figure(new) / figure(old) for old, new in pairs)


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
    runner = Runner(Cache(options.cache), options.processes, (options.seed,))
    cells = simulated(runner, _POINTS[: 1 if options.quick else None], seconds, _PARTS)
    show(cells)
    rows = trades(cells)
    if options.plot is not None:
        draw(rows, options.plot)
    bench.publish(
        _claims(rows), samples_of(cells), virtual_s=seconds, ours=OURS, trades=rows, num_seeds=1
    )


def _claims(rows: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Under the tightest targets and under the published ones, on each setup."""
    return [
        Claim(f"{name}_{row['setup']}_targets_{row['system'].split()[1]}", row[name], "share")
        for row in rows
        if row["system"] in {targets(part).name for part in (min(_PARTS), 1.0)}
        for name in ("latency_cut", "batch_kept")
    ]


if __name__ == "__main__":
    main()
