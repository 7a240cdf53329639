"""MuxServe's evaluation, corrected, on our simulator: ours against spatial, temporal and mixed.

19 LLaMA models on 32 A100s, popularity a power law of alpha, every model loaded over one window
(the published runs gave request counts to the wrong models). Ours is our planner's placement, each
unit as the plan says; temporal and mixed are placed by our planner for those lanes; spatial gives
each model a mesh by its size, as MuxServe's baseline does, and spatial-mixed runs those as vLLM
does. Every simulated unit is one that the engine builds, which is checked first. Beside them the
ablation of ADBS on one mesh, at the paper's rates and at twice those, where our engine is as
overloaded as theirs was.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.pop(0)  # the script's folder
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.harness import Bench, Claim, make_parser
from bench.muxserve.picture import draw
from bench.muxserve.simulated.cases import (
    ALPHAS,
    RIVALS,
    SCALES,
    SLO_SCALE,
    Duration,
    ablations,
    problems,
)
from bench.muxserve.simulated.judging import requests_per_s, share_within_slo
from bench.muxserve.simulated.running import (
    Cell,
    Runner,
    Search,
    ablation_rows,
    grid,
    highest_rates,
)
from bench.planning.units import Compared, clusters, compare
from muxcluster.sim.cases.sweep import Cache

# Rate scales at which the highest rate within the SLO is looked for.
_SWEEP = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.625, 0.75, 1.0, 1.25, 1.5, 2.0)
_SEARCH_S = 120.0  # Virtual seconds of each case of that search
_OVERLOADS = (1.0, 2.0)
_RANDOM_CLUSTERS = {True: 10, False: 500}  # whose units are compared, beside the published points
_QUICK_POINTS = ((2.1, 0.5), (2.1, 1.0))


def _ratios(cells: Sequence[Cell], other: str) -> list[float]:
    """Our requests/s over the other's, at each point; the highest first."""
    by_point = {(cell.alpha, cell.scale, cell.system): cell.served for cell in cells}
    found = [
        served / by_point[alpha, scale, other]
        for (alpha, scale, system), served in by_point.items()
        if system == "muxserve"
    ]
    return sorted(found, reverse=True)


def _over_best_rival(cells: Sequence[Cell], figure: Callable[[Cell], float]) -> list[float]:
    """Our figure over the greatest of all rivals', at each point."""
    found = []
    for mine in (cell for cell in cells if cell.system == "muxserve"):
        rivals = [
            figure(cell)
            for cell in cells
            if (cell.alpha, cell.scale) == (mine.alpha, mine.scale) and cell.system in RIVALS
        ]
        found.append(figure(mine) / max(rivals))
    return found


def _within_slo(cell: Cell) -> float:
    return fmean(map(share_within_slo, cell.reports))


def claims_of(
    cells: Sequence[Cell],
    highest: Mapping[str, Mapping[str, float]],
    rows: Sequence[Any],
    units: Compared,
) -> list[Claim]:
    """What is said in public; the baselines are the paper's."""
    fair = [row["least_fair_share"] for row in rows if row["system"] == "muxserve"]
    of_cluster = [cell.fair_share for cell in cells if cell.system == "muxserve"]
    at_99, over_temporal = (
        [each["muxserve"] / each[other] for each in highest.values() if each[other]]
        for other in ("spatial", "temporal")
    )
    return [
        Claim("units_that_differ", len(units.differences), "", 0),
        Claim(
            "throughput_over_best_rival_min",
            min(_over_best_rival(cells, lambda cell: cell.served)),
            "times",
            0.98,
        ),
        Claim("within_slo_over_best_rival_min", min(_over_best_rival(cells, _within_slo)), "times"),
        Claim("throughput_over_spatial_max", _ratios(cells, "spatial")[0], "times", 1.8),
        Claim("throughput_over_spatial_third", _ratios(cells, "spatial")[:3][-1], "times", 1.5),
        Claim("throughput_over_temporal_max", _ratios(cells, "temporal")[0], "times", 1.8),
        Claim("requests_at_99_over_spatial_max", max(at_99, default=0.0), "times", 2.9),
        Claim("requests_at_99_over_temporal_max", max(over_temporal, default=0.0), "times", 2.9),
        Claim("worst_fair_share", _least(fair), "of fair on one mesh", 0.9),
        Claim("worst_fair_share_of_cluster", _least(of_cluster), "of fair over all meshes"),
    ]


def _least(shares: Sequence[float | None]) -> float:
    return min(share for share in shares if share is not None)


def show(cells: Sequence[Cell], rows: Sequence[Any]) -> None:
    """Two tables."""
    for cell in cells:
        row = cell.row()
        print(
            f"alpha {cell.alpha} x {cell.scale:<5} {cell.system:9} {row['requests_per_s'][0]:7.2f}"
            f" of {row['offered_per_s']:7.2f} req/s, {row['within_slo'][0]:6.1%} within"
            f" {SLO_SCALE:g} x base"
        )
    for row in rows:
        print(
            f"{row['models']} x {row['overload']:g} {row['system']:12}"
            f" {row['rate_weighted_per_s']:6.2f} (paper {row['paper']}) {row['served_share']}"
        )


def main() -> None:
    """Simulate, compare, publish."""
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, help="virtual ones a case (4; 1 with --quick)")
    parser.add_argument("--seeds", type=int, help="repeats (2; 1 with --quick)")
    parser.add_argument("--processes", type=int, default=2, metavar="N")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="keep results, to go on later")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw figures by rate, .svg, .png"
    )
    bench = Bench(parser)
    options, data = bench.options, bench.data()
    quick = options.quick
    seconds = 60.0 * (options.minutes or (1 if quick else 4))
    num_seeds = options.seeds or (1 if quick else 2)
    duration = Duration(seconds, tuple(range(options.seed, options.seed + num_seeds)))
    runner = Runner(Cache(options.cache), options.processes)
    base = problems(data)
    points = _QUICK_POINTS if quick else [(alpha, scale) for alpha in ALPHAS for scale in SCALES]
    units = compare(clusters(data, _RANDOM_CLUSTERS[quick], options.seed))
    cells = grid(runner, base, points, duration)
    single = Duration(min(seconds, _SEARCH_S), duration.seeds[:1])
    scales = tuple(scale for scale in _SWEEP if scale <= points[-1][1] or not quick)
    search = Search(runner, scales, single)
    by_alpha = highest_rates(search, base, cells)
    highest = {str(alpha): scales for alpha, scales in by_alpha.items()}
    overloads = _OVERLOADS[-1:] if quick else _OVERLOADS
    rows = ablation_rows(runner, ablations(data), overloads, duration)
    show(cells, rows)
    if options.plot is not None:
        draw([cell.row() for cell in cells], options.plot)
    bench.publish(
        claims_of(cells, highest, rows, units),
        {
            f"alpha {cell.alpha} x {cell.scale} {cell.system}": [
                round(requests_per_s(each), 3) for each in cell.reports
            ]
            for cell in cells
        },
        virtual_s=seconds,
        num_seeds=num_seeds,
        cells=[cell.row() for cell in cells],
        highest_rate_scale_at_99=highest,
        ablation=rows,
        units_compared={
            "clusters": units.num_clusters,
            "units": units.num_units,
            "by_lane": dict(units.lanes),
            "differences": list(units.differences),
        },
    )


if __name__ == "__main__":
    main()
