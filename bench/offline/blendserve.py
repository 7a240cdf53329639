"""BlendServe's evaluation on our simulator: batch orders that overlap compute with memory.

Llama-3.1-8B on one A100-80GB with 58 GB of KV, on the virtual clock, job times and interference
from the planner's roofline. Four traces of density 1.4 or 0.9 and sharing 35 % or 5 %, and a grid
of 25 mixtures with fewer requests each, synthesised from published statistics; no order is told
output lengths (the blend runs 1 % of the requests first). The rivals are DFS, order of arrival, a
random order and longest prefix first with an LRU cache, each in every lane that a unit can be asked
for: prefill and decode side by side on the rungs that ship, and mixed jobs with large and with
small chunks. Every gain is that over the rival that is best on the trace, whatever its order and
lane; the blend has the same choice of lanes. On the grid the rivals are DFS and random.

The optimum is what the cost model permits at any mixture of rungs and chunk sizes; the ideal is the
larger one of all compute and all memory seconds. That mixed jobs hide half of their smaller part is
an assumption of the cost model where no GPU was profiled (placement/cost/mixed.py).

--quick: the first trace alone with fewer requests and shorter videos, in all orders and lanes, and
no grid. Videos of the whole run have up to 65,536 output tokens; in a small job the longest one
takes more time than all other requests, whatever the order.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.pop(0)  # the script's folder, whose modules would hide others
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.harness import Bench, make_parser
from bench.offline.blending.claims import BLEND, PAPER, Part, claims_of
from bench.offline.blending.picture import draw_all
from bench.offline.blending.runs import Rows
from bench.offline.blending.traces import GRID, TRACES, with_short_videos
from bench.offline.rows import Row

REQUESTS, GRID_REQUESTS = 100_000, 30_000
QUICK_REQUESTS = 5_000
_GRID_RIVALS = ("dfs", "random")


def main(argv: Sequence[str] | None = None) -> None:
    """Run what has not run yet, compare, publish."""
    parser = make_parser(__doc__)
    parser.add_argument("--requests", type=int, help=f"a trace ({REQUESTS}; --quick: fewer)")
    parser.add_argument(
        "--grid", type=int, help=f"requests a grid point ({GRID_REQUESTS}; --quick: 0); 0: none"
    )
    parser.add_argument("--rows", type=Path, metavar="FILE", help="keep runs there, to go on later")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="pictures (.svg)")
    parser.add_argument("--done", action="store_true", help="publish kept runs, and run nothing")
    bench = Bench(parser, argv)
    options = bench.options
    traces, grid = _parts(options.requests, options.grid, is_quick=options.quick)
    rows = Rows(options.rows)
    if options.done:
        traces, grid = (part.done(rows, options.seed) for part in (traces, grid))
    for part in (traces, grid):
        rows.run(part.cases(), options.seed)
    shown = _shown(traces, grid, rows, options.seed)
    if options.plots is not None:
        draw_all(shown, options.plots)
    bench.publish(
        claims_of(traces, grid, rows, options.seed),
        {
            "over_best_rival": traces.gains_over(traces.rivals, rows, options.seed),
            "grid": grid.gains_over(grid.rivals, rows, options.seed),
        },
        **shown,
    )


def _parts(requests: int | None, grid: int | None, *, is_quick: bool) -> tuple[Part, Part]:
    per_point = (0 if is_quick else GRID_REQUESTS) if grid is None else grid
    mixes = with_short_videos(GRID) if is_quick else GRID
    points = Part(mixes if per_point else (), per_point, _GRID_RIVALS)
    if is_quick:
        return Part(with_short_videos(TRACES[:1]), requests or QUICK_REQUESTS), points
    return Part(TRACES, requests or REQUESTS), points


def _shown(traces: Part, grid: Part, rows: Rows, seed: int) -> Mapping[str, Any]:
    """Return what the record holds beside claims: the best runs, all runs, the grid's points, one
    trace's use of the unit, and the paper's figures.
    """
    cases = [*traces.cases(), *grid.cases()]
    points = zip(grid.mixes, grid.gains_over(grid.rivals, rows, seed), strict=True)
    drawn = [
        traces.best_of(traces.mixes[0], orders, rows, seed) for orders in (traces.rivals, (BLEND,))
    ]
    return {
        "paper": PAPER,
        "traces": _compared(traces, rows, seed),
        "runs": [_without_use(rows.of(case, seed)) for case in cases],
        "grid": [
            {"density": mix.density, "sharing": mix.sharing, "gain": gain} for mix, gain in points
        ],
        "use": {f"{case.order}, {case.lane.value}": rows.of(case, seed)["use"] for case in drawn},
    }


def _compared(part: Part, rows: Rows, seed: int) -> list[Row]:
    """Return, by mixture, the blend and its best rival, each with its lane."""
    found = []
    for mix, gain in zip(part.mixes, part.gains_over(part.rivals, rows, seed), strict=True):
        blend = part.best_of(mix, (BLEND,), rows, seed)
        rival = part.best_of(mix, part.rivals, rows, seed)
        row = rows.of(blend, seed)
        found.append(
            {
                "trace": mix.name,
                "lane": blend.lane.value,
                "rival": f"{rival.order}, {rival.lane.value}",
                "gain": gain,
                "share_of_permitted": row["share_of_permitted"],
                "share_of_ideal": row["share_of_ideal"],
            }
        )
    return found


def _without_use(row: Row) -> Row:
    return {key: value for key, value in row.items() if key != "use"}


if __name__ == "__main__":
    main()
