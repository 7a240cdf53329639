"""Seconds to plan a batch job: prefix tree, BatchLLM's groups and order, BlendServe's.

Two jobs. *small*: BatchLLM's plan of 3,000 requests as in that paper, in groups of 7 that share
about 1,100 tokens, with about 400 of their own each. *large*: both plans of 400,000 requests mixed
as BlendServe mixes its traces, each kind sharing what that paper says of it: BurstGPT 2 % of its
tokens, MMLU 86 %, WildChat 19 %, video generation none; the lengths and the shapes of sharing are
ours. Prompts are given as token ids in one array, in random order; the clock runs from there to the
plan.
"""

import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.pop(0)  # the script's folder, whose http.py would hide Python's
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from bench.harness import Bench, Claim, make_parser
from bench.offline.baselines.batchllm import plan_batch
from bench.traces.batchmix import Kind, mixed_job
from muxcluster.offline.blend.lengths import estimate_lengths, sample_places
from muxcluster.offline.blend.plan import plan_blend
from muxcluster.offline.prefix.prompts import flat_prompts
from muxcluster.placement.cost.resources import resource_model
from muxcluster.placement.hardware import gpu_named
from muxcluster.placement.shapes.known import shape_named
from muxcluster.workload.batchjob import BatchJob

BLOCK_TOKENS = 16
KV_BYTES = 60e9
SMALL, LARGE = 3_000, 400_000


PAPER_LIKE = [Kind(1.0, 7, 1100, 400, 200)]
MIX = [
    Kind(0.3, 400, 12, 560, 200),  # BurstGPT: short system prompts
    Kind(0.4, 2500, 640, 100, 2),  # MMLU: five examples a subject, then the question
    Kind(0.2, 2, 190, 310, 500),  # WildChat: the conversation so far
    Kind(0.1, 1, 0, 60, 16_000),  # video generation: a caption each
]


@dataclass(frozen=True, slots=True)
class Planned:
    """One job."""

    num_requests: int
    num_tokens: int
    num_nodes: int
    num_groups: int
    num_pieces: int
    saving: float  # share of its tokens that is shared; seconds: of each run
    one_level_saving: float
    tree_and_groups_s: tuple[float, ...]  # the tree and BatchLLM's plan
    blend_s: tuple[float, ...]  # BlendServe's on the same tree


def main(argv: Sequence[str] | None = None) -> None:
    """Run the bench."""
    bench = Bench(make_parser(__doc__), argv)
    options = bench.options
    rng = np.random.default_rng(options.seed)
    small = _plan(mixed_job(PAPER_LIKE, SMALL, rng), 3 if options.quick else 20, rng)
    large = _plan(
        mixed_job(MIX, LARGE // 10 if options.quick else LARGE, rng), 1 if options.quick else 3, rng
    )
    both_s = [sum(run) for run in zip(large.tree_and_groups_s, large.blend_s, strict=True)]
    peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    claims = [Claim("plan_seconds_3000", float(np.median(small.tree_and_groups_s)), "s", 0.1)]
    if not options.quick:
        claims.append(Claim("plan_seconds_400000", float(np.median(both_s)), "s", 60.0))
        claims.append(Claim("peak_rss_bytes", peak_bytes, "bytes", 4e9))
    bench.publish(
        claims,
        {f"plan_seconds_{small.num_requests}": small.tree_and_groups_s,
         f"plan_seconds_{large.num_requests}": both_s},
        jobs=[asdict(small), asdict(large)],
        peak_rss_bytes=peak_bytes,
        mix=[asdict(each) for each in MIX],
    )  # fmt: skip


def _plan(job: BatchJob, runs: int, rng: np.random.Generator) -> Planned:
    model = resource_model(shape_named("llama-3.1-8b"), gpu_named("A100-80GB"))
    outputs = job.output_tokens.astype(np.float64)
    grouped_s, blend_s = [], []
    for _ in range(runs):
        start = time.perf_counter()
        plan = plan_batch(flat_prompts(job.ids, job.offsets), outputs, BLOCK_TOKENS, own_tokens=1)
        middle = time.perf_counter()
        known = np.full(len(job), np.nan)
        sample = sample_places(plan.tree, rng)
        known[sample] = outputs[plan.tree.order[sample]]
        blend = plan_blend(plan.tree, model, estimate_lengths(plan.tree, known), KV_BYTES)
        blend_s.append(time.perf_counter() - middle)
        grouped_s.append(middle - start)
    planned = Planned(
        len(job),
        len(job.ids),
        plan.tree.num_nodes,
        len(plan.groups),
        len(blend.pieces),
        plan.saving_ratio,
        plan.one_level_ratio,
        tuple(grouped_s),
        tuple(blend_s),
    )
    print(*(f"{name}={value}" for name, value in asdict(planned).items()), flush=True)
    return planned


if __name__ == "__main__":
    main()
