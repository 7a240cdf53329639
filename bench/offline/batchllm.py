"""BatchLLM's order against arrival order, both with a prefix cache and chunked prefill, simulated.

Llama-3.1-8B on one A100-80GB with 58 GB of KV, mixed jobs of 2,048 tokens, up to 512 sequences, on
the virtual clock, job times from the planner's roofline. Micro-benchmarks: prefixes of 2,000,
1,000 and 200 tokens before 200, 1,000 and 2,000 of a request's own, shared by 4 and by 16; arrival
in random order, 100 output tokens in the mean (ours). *Saving*: BatchLLM's kind of job (3,000
requests, prefix 1,100, own 400, degree 7) in both orders; `lru` is the arrival order's saving in a
cache of the same size that holds nothing but prompts, without a scheduler. Output lengths are known
to the planner. --quick: a sixth of the requests, and of the memory.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.pop(0)  # the script's folder, whose modules would hide others
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import numpy as np

from bench.harness import Bench, Claim, make_parser
from muxcluster.core.job import WorkerSlot
from muxcluster.core.kvshape import KvShape, block_bytes
from muxcluster.core.unitspec import ModelSpec, SchedulerSpec, UnitSpec
from muxcluster.offline.blend.resources import resource_model
from muxcluster.offline.choice import Unplanned, compare_orders
from muxcluster.offline.lru import lru_saved_tokens
from muxcluster.offline.prompts import flat_prompts
from muxcluster.sim.batch import SimPredictor
from muxcluster.sim.unit import SimModel, SimUnit
from muxcluster.workload.batchmix import Kind, mixed_job
from placement.cost import Roofline
from placement.hardware import gpu_named
from placement.known_shapes import shape_named

SHAPE, GPU = shape_named("llama-3.1-8b"), gpu_named("A100-80GB")
RESOURCES = resource_model(SHAPE, GPU)
BLOCK_TOKENS = 16
KV_BYTES = 58e9
REQUESTS = 3000
LENGTHS, DEGREES, OUTPUT = ((2000, 200), (1000, 1000), (200, 2000)), (4, 16), 100
PAPER_LIKE = Kind(1.0, 7, 1100, 400, 200)


@dataclass(frozen=True, slots=True)
class Compared:
    """One job in both orders. optimum: saving ratio of the tree; lru: of a plain cache."""

    kind: Kind
    num_requests: int
    optimum: float
    lru: float
    saving: dict[str, float]
    makespan_s: dict[str, float]
    tokens_per_s: dict[str, float]

    @property
    def speedup(self) -> float:
        """Of BatchLLM's order over that of arrival."""
        return self.makespan_s["fcfs"] / self.makespan_s["batchllm"]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the bench."""
    bench = Bench(make_parser(__doc__), argv)
    seed, quick = bench.options.seed, bench.options.quick
    kinds = [Kind(1.0, degree, *each, OUTPUT) for each in LENGTHS for degree in DEGREES]
    num_requests = REQUESTS // 6 if quick else REQUESTS
    micro = [_compared(kind, num_requests, seed) for kind in kinds]
    saving = _compared(PAPER_LIKE, num_requests, seed)
    speedups = [each.speedup for each in micro]
    bench.publish(
        [
            Claim("saving_ratio", saving.saving["batchllm"], "", saving.optimum),
            Claim("saving_ratio_lru", saving.lru, "", saving.saving["batchllm"]),
            Claim("speedup_over_prefix_cache_min", min(speedups), "x", 1.1),
            Claim("speedup_over_prefix_cache_max", max(speedups), "x", 1.5),
        ],
        {"speedup": speedups},
        micro=[asdict(each) for each in micro],
        saving=asdict(saving),
    )


def _compared(kind: Kind, num_requests: int, seed: int) -> Compared:
    job = mixed_job([kind], num_requests, np.random.default_rng(seed))
    size_bytes = KV_BYTES * num_requests / REQUESTS
    asked = Unplanned(
        flat_prompts(job.ids, job.offsets),
        job.output_tokens,
        RESOURCES,
        size_bytes,
        BLOCK_TOKENS,
        seed,
    )
    predictor = SimPredictor(_unit(size_bytes), "m", RESOURCES)
    choice = compare_orders(asked, predictor, ("fcfs", "batchllm"))
    tree = asked.with_tree().tree
    capacity = int(size_bytes) // RESOURCES.kv_bytes
    found = Compared(
        kind,
        len(job),
        choice.sample.sharing,
        lru_saved_tokens(tree, range(len(job)), capacity) / tree.prompt_tokens,
        {name: each.saving_ratio for name, each in choice.predictions.items()},
        {name: each.makespan_s for name, each in choice.predictions.items()},
        {name: each.tokens_per_s for name, each in choice.predictions.items()},
    )
    print(f"speedup={found.speedup:.3f}", asdict(found), flush=True)
    return found


def _unit(size_bytes: float) -> SimUnit:
    shape = KvShape(SHAPE.num_layers, SHAPE.num_kv_heads, SHAPE.head_dim, 2)
    per_block = block_bytes(BLOCK_TOKENS, 2)
    model = ModelSpec("m", "", shape, SHAPE.vocab_size, 16_384, (), max_seqs=512)
    policy = SchedulerSpec(lane="mixed", token_budget=2048, max_decode_rows=512)
    workers = (WorkerSlot(0, (1.0,)),)
    spec = UnitSpec("u", (model,), int(size_bytes) // per_block, per_block, workers, policy)
    return SimUnit(spec, {"m": SimModel(SHAPE, Roofline(GPU))})


if __name__ == "__main__":
    main()
