"""BatchLLM's order against those of servers, simulated: micro-benchmarks, and its two cases.

Llama-3.1-8B on one A100-80GB with 58 GB of KV, on the virtual clock; all systems are one engine
with other settings, jobs come in random order, output lengths are known to the plan, those of the
paper's jobs are ours. *micro*: prefixes of 2,000, 1,000 and 200 tokens before 200, 1,000 and 2,000
of a request's own, shared by 4 and by 16. *case 1*: prefix 1,100, own 400, degree 7; *case 2*: 770,
978, 11.36; each on vLLM's settings one by one, then on ours one by one: requests of a group
together, the groups by R, memory instead of a number of requests as the limit. *valleys*: tokens of
a step over time (--plot draws them). --quick: a third of the requests, of the memory and of the
rows that run at once, so that memory and rows limit a batch as in the whole run.
"""

import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.pop(0)  # the script's folder, whose modules would hide others
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import numpy as np

from bench.harness import Bench, Claim, make_parser
from bench.offline.prefix_groups.cases import (
    CASE_1,
    CASE_2,
    LADDER,
    MICRO,
    OURS,
    QUICK,
    REQUESTS,
    RIVALS,
    TWO_KINDS,
    Case,
    Ran,
    run_case,
    valleys,
)
from bench.offline.prefix_groups.picture import draw
from bench.offline.prefix_groups.unit import BATCHLLM, BOTH, GROUPED, System

_PAPER = {"case_1": 12.85 / 9.83, "case_2": 1.47, "batching_and_order": 1.09, "cut": 0.15}
_NUM_BINS = 160


def main(argv: Sequence[str] | None = None) -> None:
    """Run the bench."""
    parser = make_parser(__doc__)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="the valleys; .svg or .png")
    parser.add_argument("--requests", type=int, help=f"of each job ({REQUESTS}; {QUICK})")
    parser.add_argument("--processes", type=int, default=2, help="(%(default)s)")
    bench = Bench(parser, argv)
    seed = bench.options.seed
    num_requests = bench.options.requests or (QUICK if bench.options.quick else REQUESTS)
    asked = [(CASE_1, LADDER), (CASE_2, LADDER), (TWO_KINDS, OURS)]
    asked += [(case, RIVALS) for case in MICRO]
    work = [(*each, num_requests, seed) for each in asked]
    one, two, kinds, *micro = _ran(work, bench.options.processes)
    lines = _valleys(kinds)
    if bench.options.plot is not None:
        draw(lines, bench.options.plot)
    bench.publish(
        [*_saving_claims(one), *_speed_claims(micro, one, two)],
        {"speedup": [each.speedup for each in micro]},
        micro=[each.row() for each in micro],
        cases=[each.row() for each in (one, two, kinds)],
        valleys=lines,
    )


def _ran(work: Sequence[tuple[Case, Sequence[System], int, int]], processes: int) -> list[Ran]:
    """Every `run_case`, in this process where one is enough."""
    if processes == 1:
        return [run_case(*each) for each in work]
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(run_case, *zip(*work, strict=True)))


def _saving_claims(one: Ran) -> list[Claim]:
    """Of the first case; `savings.py` has those of real jobs."""
    planned = one.outcomes[BATCHLLM.name].saving
    return [
        Claim("saving_ratio", planned, "", one.optimum),
        Claim("saving_ratio_lru", one.lru, "", planned),
    ]


def _speed_claims(micro: Sequence[Ran], one: Ran, two: Ran) -> list[Claim]:
    """The paper's figures beside them, where its baseline has vLLM's limit of 256 requests."""
    speedups = [each.speedup for each in micro]
    batching_and_order = one.makespan_s(GROUPED) / one.makespan_s(BATCHLLM)
    cut = 1 - one.cool_down_s(BATCHLLM) / one.cool_down_s(GROUPED)
    return [
        Claim("speedup_over_prefix_cache_min", min(speedups), "x", 1.1),
        Claim("speedup_over_prefix_cache_max", max(speedups), "x", 1.5),
        Claim("case_1_speedup", _over_both(one), "x", _PAPER["case_1"]),
        Claim("case_2_speedup", _over_both(two), "x", _PAPER["case_2"]),
        Claim("batching_and_order_speedup", batching_and_order, "x", _PAPER["batching_and_order"]),
        Claim("cool_down_free_time_cut", cut, "", _PAPER["cut"]),
    ]


def _over_both(ran: Ran) -> float:
    return ran.makespan_s(BOTH) / ran.makespan_s(BATCHLLM)


def _valleys(ran: Ran) -> dict[str, Any]:
    edges = np.linspace(0.0, max(map(ran.makespan_s, OURS)), _NUM_BINS + 1).tolist()
    lines = {
        system.name: {
            **valleys(ran.outcomes[system.name].steps, edges),
            "until_cool_down_s": ran.cool_down_s(system),
        }
        for system in OURS
    }
    return {"case": ran.case.name, "bin_s": edges[1], "systems": lines}


if __name__ == "__main__":
    main()
