"""Does the simulator reproduce what MuxServe's authors measured on 32 A100s?

Every published run (ChatLMSYS at two rates, 19 models at three popularities and four rates; each
with MuxServe, spatial partitioning and temporal multiplexing) is simulated as it was run: its
meshes and models, KV pools, SM shares where they are recorded, counts and rates, job times from the
published profile plus the documented block-table upload. Throughput is taken as they took it: a
model's requests over the time of its own last completion. No constant is fitted to any of these
runs. See README.md in this folder for what is not known and how it was filled in.
"""

import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from statistics import median

sys.path.pop(0)  # the script's folder
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.harness import Bench, Claim, make_parser
from bench.muxserve.artifact.agreement import Row, by_point, pairs_right, ranked, row_of
from bench.muxserve.artifact.published import Run, read_runs
from bench.muxserve.artifact.replay import Replayed, replay
from bench.muxserve.artifact.store import Store

_QUICK = ("chatlmsys_c500", "chatlmsys_c1200", "synth19_a2.1_s0.5")
_NEAR = 0.02  # Systems measured this near to each other are told apart by luck


def replayed(
    runs: Sequence[Run], data: Path, seeds: Sequence[int], store: Store, num_processes: int
) -> list[Row]:
    """A row a run, in their order."""
    found = {(run, seed): store.read(Replayed, run, seed) for run in runs for seed in seeds}
    missing = [case for case, known in found.items() if known is None]
    with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(replay, run, data, seed): (run, seed) for run, seed in missing}
        for done, future in enumerate(as_completed(futures), 1):
            run, seed = futures[future]
            found[run, seed] = future.result()
            store.write(future.result(), run, seed)
            print(f"{done} of {len(missing)}: {run.point} {run.system}, seed {seed}", flush=True)
    return [
        row_of(run, [each for seed in seeds if (each := found[run, seed]) is not None])
        for run in runs
    ]


def show(rows: Sequence[Row]) -> None:
    """A line a run."""
    print(f"{'total requests/s':22} {'system':9} {'measured':>9} {'simulated':>9} {'error':>7}")
    for row in rows:
        measured, simulated = row.totals
        run = row.run
        print(f"{run.point:22} {run.system:9} {measured:9.2f} {simulated:9.2f} {row.error:+7.1%}")
    for point, systems in by_point(rows).items():
        order, ours = ranked(systems)
        if order != ours:
            print(f"{point}: measured {' > '.join(order)}, simulated {' > '.join(ours)}")


def claims_of(rows: Sequence[Row]) -> list[Claim]:
    """What is said in public."""
    points = by_point(rows).values()
    orders = [ranked(systems) for systems in points]
    pairs = [pair for systems in points for pair in pairs_right(systems)]
    apart = [right for *_, gap, right in pairs if gap > _NEAR]
    errors = [abs(row.error) for row in rows]
    of_models = [abs(error) for row in rows for error in row.model_errors]
    right = sum(measured == simulated for measured, simulated in orders)
    return [
        Claim("total_throughput_median_abs_error", median(errors), "of measured", 0.15),
        Claim("ranking_accuracy", right / len(orders), "of points", 0.9),
        Claim("per_model_median_abs_error", median(of_models), "of measured"),
        Claim("total_throughput_max_abs_error", max(errors), "of measured"),
        Claim("pair_ranking_accuracy", sum(apart) / len(apart), "of pairs over 2 % apart", 0.9),
    ]


def _table(rows: Sequence[Row]) -> list[dict[str, object]]:
    return [
        {
            "point": row.run.point,
            "system": row.run.system,
            "measured_per_s": round(row.totals[0], 3),
            "simulated_per_s": round(row.totals[1], 3),
            "error": round(row.error, 4),
            "rate_weighted_measured": round(row.weighted[0], 3),
            "rate_weighted_simulated": round(row.weighted[1], 3),
            "per_model_median_abs_error": round(median(map(abs, row.model_errors)), 4),
        }
        for row in rows
    ]


def main() -> None:
    """Replay, compare, publish."""
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="replays of each run (1 with --quick)")
    parser.add_argument("--processes", type=int, default=2, metavar="N")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="keep replays, to go on later")
    bench = Bench(parser)
    options, data = bench.options, bench.data()
    runs = read_runs(data)
    if options.quick:
        runs = tuple(run for run in runs if run.point in _QUICK)
    seeds = range(options.seed, options.seed + (1 if options.quick else options.seeds))
    store = Store(options.cache)
    rows = replayed(runs, data, seeds, store, options.processes)
    show(rows)
    samples = {
        f"{row.run.point} {row.run.system}": [
            (round(row.measured[name], 4), round(row.simulated[name], 4)) for name in row.measured
        ]
        for row in rows
    }
    bench.publish(claims_of(rows), samples, num_seeds=len(seeds), runs=_table(rows))


if __name__ == "__main__":
    main()
