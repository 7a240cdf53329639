"""Time per step of the real scheduler: one `next_jobs` and one `complete`, at steady state.

Workers are fake and instant, everything else is what the engine runs with. A *step* is one turn
of the engine's loop: `next_jobs`, then `complete` of the job that ends first. With 8 models a
decode job covers one model's rows, an eighth of the running sequences; the same numbers are given
with all sequences in one model, where every decode job covers them all, and as the cost of one
token for every running sequence. Requests that end are replaced at once, so prefill, admission,
hashing, block growth, ends and eviction are in the timed steps at the rate that real lengths
imply. Garbage collection is left as Python has it, because the engine does too.

With --hybrid the packing is hybrid, half of the requests are batch, and memory is short: see
scheduling/hybrid.py. With --cpu time is the thread's processor time, for a busy machine.
"""

import gc
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import numpy as np

sys.path.pop(0)  # the script's folder, whose http.py would hide Python's
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.harness import Bench, Claim, make_parser, percentiles
from bench.scheduling.hybrid import (
    CLAIMED_SIZE,
    HYBRID_SIZES,
    HYBRID_TARGET_US,
    hybrid_cases,
    run_hybrid,
)
from bench.scheduling.load import (
    Lengths,
    SteadyLoad,
    sharegpt_lengths,
    trace_lengths,
    unit_spec,
)
from bench.scheduling.timing import Clock, measure
from muxcluster.core.kvshape import KvShape
from muxcluster.placement.shapes.known import SHAPES

TARGET_US = 500.0  # Issue 3: the median step at 1,000 running sequences stays below this
NUM_MODELS = 8
STATED = "8 layers x 4 KV heads"
STATED_SHAPE = KvShape(num_layers=8, num_kv_heads=4, head_dim=128, itemsize=2)
REAL = ("llama-2-7b", "llama-3-8b", "llama-3-70b")
SIZES = (100, 1000, 10_000)
HYBRID_REAL = "llama-2-7b"
# With --quick, only the claimed case is measured with more running sequences than this.
QUICK_SIZE = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One population: `num_running` sequences over `num_models` models of one shape."""

    shape_name: str
    shape: KvShape
    num_models: int
    num_running: int
    lengths_name: str
    lengths: Lengths

    @property
    def is_claimed(self) -> bool:
        """True for the stated shape; the other cases show what it leaves out."""
        stated = STATED, NUM_MODELS, "sharegpt"
        return (self.shape_name, self.num_models, self.lengths_name) == stated

    @property
    def name(self) -> str:
        models = f"{self.num_models} model{'s' if self.num_models > 1 else ''}"
        return f"{self.shape_name}, {models}, {self.lengths_name}, {self.num_running}"


def run(case: Case, num_steps: int, seed: int, clock: Clock) -> tuple[dict[str, Any], list[float]]:
    """The case's figures and its samples (µs per step, in order)."""
    spec = unit_spec(case.shape, case.num_models, case.num_running, case.lengths.mean_live_tokens)
    load = SteadyLoad(spec, case.lengths, case.num_running, np.random.default_rng(seed))
    measure(load, max(num_steps // 4, 4 * case.num_models))
    preempted = _num_preemptions(load)
    collections = sum(generation["collections"] for generation in gc.get_stats())
    timings = measure(load, num_steps, clock)
    step_us = np.array(timings.next_jobs_us) + np.array(timings.complete_us)
    is_decode = np.array(timings.is_decode)
    rows = np.array(timings.num_rows)
    us_per_token = step_us.sum() / max(1, timings.num_tokens)
    stats = load.scheduler.stats(load.now, "").models
    figures = {
        "case": case.name,
        "shape": case.shape_name,
        "blocks_per_column": case.shape.blocks_per_column,
        "num_models": case.num_models,
        "num_running": case.num_running,
        "num_running_at_end": sum(model.num_running for model in stats),
        "lengths": case.lengths_name,
        "num_blocks": spec.num_blocks,
        "step_us": percentiles(step_us),
        "step_us_per_running_sequence": round(float(np.median(step_us)) / case.num_running, 3),
        "us_per_token": round(float(us_per_token), 3),
        "us_per_token_of_every_sequence": round(float(us_per_token) * case.num_running, 1),
        "next_jobs_us": percentiles(timings.next_jobs_us),
        "complete_us": percentiles(timings.complete_us),
        "decode_step_us": percentiles(step_us[is_decode]) if is_decode.any() else None,
        "prefill_step_us": percentiles(step_us[~is_decode]) if not is_decode.all() else None,
        "add_us": percentiles(timings.add_us) if timings.add_us else None,
        "num_steps": len(step_us),
        "num_decode_steps": int(is_decode.sum()),
        "mean_decode_rows": round(float(rows[is_decode].mean()), 1) if is_decode.any() else None,
        "num_ended": timings.num_ended,
        "num_preemptions": _num_preemptions(load) - preempted,
        "num_collections": sum(g["collections"] for g in gc.get_stats()) - collections,
    }
    return figures, [round(value, 1) for value in step_us.tolist()]


def _num_preemptions(load: SteadyLoad) -> int:
    return sum(model.num_preemptions for model in load.scheduler.stats(load.now, "").models)


def cases(sizes: Sequence[int], data: Path, seed: int) -> Iterator[Case]:
    """The stated shape (8 models, one model, trace lengths), then the real ones."""
    usual = sharegpt_lengths(np.random.default_rng(seed))
    trace = trace_lengths(data)
    stated = STATED_SHAPE
    for size in sizes:
        yield Case(STATED, stated, NUM_MODELS, size, "sharegpt", usual)
    for size in sizes:
        yield Case(STATED, stated, 1, size, "sharegpt", usual)
    if trace is not None:
        for size in sizes:
            yield Case(STATED, stated, NUM_MODELS, size, "azure-conv", trace)
    for name in REAL:
        shape = _known_shape(name)
        for size in sizes:
            yield Case(name, shape, NUM_MODELS, size, "sharegpt", usual)


def _known_shape(name: str) -> KvShape:
    model = SHAPES[name]
    return KvShape(model.num_layers, model.num_kv_heads, model.head_dim, itemsize=2)


def main() -> None:
    """Measure every case, print a table, publish the claims."""
    parser = make_parser(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", help="sequences (--hybrid: requests)")
    parser.add_argument("--steps", type=int, help="timed steps a case (2000; 300 with --quick)")
    parser.add_argument(
        "--hybrid", action="store_true", help="packing hybrid, classes half and half"
    )
    parser.add_argument("--cpu", action="store_true", help="processor time instead of elapsed time")
    bench = Bench(parser)
    num_steps = bench.options.steps or (300 if bench.options.quick else 2000)
    clock = thread_time if bench.options.cpu else perf_counter
    (_measure_hybrid if bench.options.hybrid else _measure)(bench, num_steps, clock)


def _measure(bench: Bench, num_steps: int, clock: Clock) -> None:
    options = bench.options
    print(f"{'µs per step: case':55} {'p50':>8} {'p90':>8} {'p99':>8}  per seq.  rows/decode")
    figures, samples, claims = [], {}, []
    for case in cases(options.sizes or SIZES, options.data, options.seed):
        if options.quick and case.num_running > QUICK_SIZE and not case.is_claimed:
            continue
        row, samples[case.name] = run(case, num_steps, options.seed, clock)
        figures.append(row)
        step = row["step_us"]
        print(
            f"{case.name:55} {step['p50']:8.0f} {step['p90']:8.0f} {step['p99']:8.0f}  "
            f"{row['step_us_per_running_sequence']:8.3f}  {row['mean_decode_rows']}",
            flush=True,
        )
        if case.is_claimed:
            target = TARGET_US if case.num_running == 1000 else None
            claims.append(Claim(f"step_us_p50_at_{case.num_running}", step["p50"], "us", target))
    bench.publish(
        claims,
        samples,
        shape=f"{NUM_MODELS} models, {STATED}",
        gc_thresholds=gc.get_threshold() if gc.isenabled() else None,
        cases=figures,
    )


def _measure_hybrid(bench: Bench, num_steps: int, clock: Clock) -> None:
    options = bench.options
    lengths = sharegpt_lengths(np.random.default_rng(options.seed))
    shapes = (STATED, STATED_SHAPE), (HYBRID_REAL, _known_shape(HYBRID_REAL))
    print(f"{'µs per step: case':50} {'p50':>8} {'p90':>8} {'p99':>8}  rows/job  with copies")
    figures, samples, claims = [], {}, []
    for case in hybrid_cases(shapes, options.sizes or HYBRID_SIZES, lengths):
        if options.quick and case.num_requests > CLAIMED_SIZE:
            continue
        row, samples[case.name] = run_hybrid(case, num_steps, options.seed, clock)
        figures.append(row)
        step = row["step_us"]
        print(
            f"{case.name:50} {step['p50']:8.0f} {step['p90']:8.0f} {step['p99']:8.0f}  "
            f"{row['mean_rows']:8.1f}  {row['jobs_with_copies']:11.3f}",
            flush=True,
        )
        if case.shape_name == STATED:
            target = HYBRID_TARGET_US if case.num_requests == CLAIMED_SIZE else None
            claims.append(Claim(case.claim, step["p50"], "us", target))
    bench.publish(
        claims,
        samples,
        gc_thresholds=gc.get_threshold() if gc.isenabled() else None,
        cases=figures,
    )


if __name__ == "__main__":
    main()
