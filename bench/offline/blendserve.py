"""BlendServe's evaluation on our simulator: batch orders that overlap compute with memory.

Llama-3.1-8B on one A100-80GB with 58 GB of KV, on the virtual clock, job times and interference
from the planner's roofline: prefill and decode side by side with the best fixed split of the SMs,
or (serial) one mixed job after the other. Four traces of density 1.4 or 0.9 and sharing 35 % or
5 %, and a grid of 65 mixtures with fewer requests each, synthesised from published statistics; no
order is told output lengths (the blend runs 1 % of the requests first). The optimum is what the
cost model permits at any mixture of splits; the ideal is the larger one of all compute and all
memory seconds. --quick: one trace and three grid points with fewer requests and shorter videos, the
blend over DFS alone. The whole run's videos have up to 65,536 output tokens; in a small job the
longest one takes more time than all other requests, whatever the order. Shorter videos avoid that,
but they are less bound by memory, so DFS loses less. Expect 1.28 times DFS and 0.81 of the optimum
on the trace (whole run: 1.36 and 0.91) and 1.09 on the grid (1.22 over 65 points, 1.01 to 1.49).
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.pop(0)  # the script's folder, whose modules would hide others
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.harness import Bench, make_parser
from bench.offline.blending.claims import COMPARED, ORDERS, SERIAL, Part, case_of, claims_of
from bench.offline.blending.picture import draw_all
from bench.offline.blending.runs import Rows
from bench.offline.blending.traces import GRID, TRACES, with_short_videos
from bench.offline.rows import Row

REQUESTS, GRID_REQUESTS = 100_000, 30_000
QUICK_REQUESTS, QUICK_GRID_REQUESTS = 12_000, 4_000


def main(argv: Sequence[str] | None = None) -> None:
    """Run what has not run yet, compare, publish."""
    parser = make_parser(__doc__)
    parser.add_argument("--requests", type=int, help=f"a trace ({REQUESTS}; --quick: fewer)")
    parser.add_argument(
        "--grid", type=int, help=f"requests a grid point ({GRID_REQUESTS}); 0: none"
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
        {"over_dfs": traces.ratios(rows, options.seed), "grid": grid.ratios(rows, options.seed)},
        **shown,
    )


def _parts(requests: int | None, grid: int | None, *, is_quick: bool) -> tuple[Part, Part]:
    per_point = (QUICK_GRID_REQUESTS if is_quick else GRID_REQUESTS) if grid is None else grid
    mixes = with_short_videos(GRID[4::26]) if is_quick else GRID
    points = Part(mixes if per_point else (), per_point)
    if is_quick:
        return Part(with_short_videos(TRACES[:1]), requests or QUICK_REQUESTS), points
    return Part(TRACES, requests or REQUESTS, ORDERS, SERIAL), points


def _shown(traces: Part, grid: Part, rows: Rows, seed: int) -> Mapping[str, Any]:
    """What the record holds beside claims: the runs, the grid's points, one trace's use."""
    cases = [*traces.cases(), *grid.cases()]
    points = zip(grid.mixes, grid.ratios(rows, seed), strict=True)
    drawn = (case_of(traces.mixes[0], traces.num_requests, order) for order in COMPARED)
    return {
        "runs": [_without_use(rows.of(case, seed)) for case in cases],
        "grid": [
            {"density": mix.density, "sharing": mix.sharing, "over_dfs": ratio}
            for mix, ratio in points
        ],
        "use": {case.order: rows.of(case, seed)["use"] for case in drawn},
    }


def _without_use(row: Row) -> Row:
    return {key: value for key, value in row.items() if key != "use"}


if __name__ == "__main__":
    main()
