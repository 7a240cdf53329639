"""The unit that BlendServe's workloads run on, and the least time that its cost model permits."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from bench.offline.blending.traces import BLOCK_TOKENS
from muxcluster.core.job import Phase, WorkerSpec
from muxcluster.core.kvshape import KvShape, block_bytes
from muxcluster.core.unitspec import ModelSpec, SchedulerSpec, UnitSpec
from muxcluster.offline.blend.resources import resource_model
from muxcluster.offline.choice import JobSummary
from muxcluster.placement.cost import Roofline
from muxcluster.placement.hardware import gpu_named
from muxcluster.placement.shapes.known import shape_named
from muxcluster.sim.core.unit import SimModel, SimUnit

SHAPE, GPU = shape_named("llama-3.1-8b"), gpu_named("A100-80GB")
RESOURCES = resource_model(SHAPE, GPU)
COST = Roofline(GPU)
KV_BYTES = 58e9
MAX_LEN = 131_072
BUDGET_TOKENS = 8192
MOST_ROWS = 1024
SPLITS = (0.4, 0.5, 0.6, 0.7)  # SM shares that prefill may have beside decode


def make_unit(prefill_share: float | None) -> SimUnit:
    """Prefill and decode side by side with such a share for prefill; None: mixed jobs on all SMs.

    A phase that is alone takes all SMs.
    """
    shape = KvShape(SHAPE.num_layers, SHAPE.num_kv_heads, SHAPE.head_dim, 2)
    per_block = block_bytes(BLOCK_TOKENS, 2)
    model = ModelSpec("m", "", shape, SHAPE.vocab_size, MAX_LEN, (), max_seqs=2 * MOST_ROWS)
    if prefill_share is None:
        lane, workers = "mixed", (WorkerSpec(0, (1.0,)),)
    else:
        rest = round(1 - prefill_share, 6)
        lane, workers = (
            "adbs",
            (
                WorkerSpec(0, (prefill_share, 1.0), frozenset({Phase.PREFILL})),
                WorkerSpec(1, (rest, 1.0), frozenset({Phase.DECODE})),
            ),
        )
    policy = SchedulerSpec(lane=lane, token_budget=BUDGET_TOKENS, max_decode_rows=MOST_ROWS)
    spec = UnitSpec("u", (model,), int(KV_BYTES) // per_block, per_block, workers, policy)
    return SimUnit(spec, {"m": SimModel(SHAPE, COST)})


@dataclass(frozen=True, slots=True)
class Permitted:
    """What the cost model permits."""

    seconds: float  # the least there are, by changing between all splits and one phase at a time
    # split, split_s: of a fixed split, the best one, until one phase is done and the other goes on
    # with all SMs
    split: float
    split_s: float
    serial_s: float  # one phase at a time throughout


def permitted(summary: JobSummary) -> Permitted:
    """For a job as a whole: full prefill jobs that compute nothing twice, and decode steps over a
    full pool, as many rows as that holds at the job's mean, so that weights are read least often.
    """
    alone = _seconds(summary, 1.0, 1.0)
    modes = {split: _seconds(summary, split, 1.0 - split) for split in SPLITS}
    columns = [(1 / alone[0], 0.0), (0.0, 1 / alone[1])]
    columns += [(1 / prefill_s, 1 / decode_s) for prefill_s, decode_s in modes.values()]
    found = linprog(np.ones(len(columns)), A_eq=np.array(columns).T, b_eq=np.ones(2))
    split_s = {split: _until_both_done(times, alone) for split, times in modes.items()}
    best = min(split_s, key=lambda split: split_s[split])
    return Permitted(float(found.fun), best, split_s[best], sum(alone))


def _until_both_done(side_by_side: tuple[float, float], alone: tuple[float, float]) -> float:
    first = min(side_by_side)
    left = [1 - first / each for each in side_by_side]
    return first + sum(part * each for part, each in zip(left, alone, strict=True))


def _seconds(summary: JobSummary, prefill_share: float, decode_share: float) -> tuple[float, float]:
    """Of all prefill and of all decode at these shares; side by side where they are not all."""
    num_computed = summary.prompt_tokens * (1 - summary.sharing)
    prompt = summary.prompt_tokens / summary.num_requests
    batch = BUDGET_TOKENS / prompt
    prefill = (SHAPE, 1, prefill_share, batch, prompt)
    read_tokens = summary.memory_s / RESOURCES.kv_s
    pool_tokens = KV_BYTES / RESOURCES.kv_bytes
    rows = min(MOST_ROWS, summary.output_tokens * pool_tokens / read_tokens)
    decode = (SHAPE, 1, decode_share, rows, read_tokens / summary.output_tokens)
    slowdown = 1.0
    if decode_share < 1.0:
        slowdown = COST.slowdown((COST.prefill_draw(*prefill), COST.decode_draw(*decode)))
    prefill_s = num_computed / BUDGET_TOKENS * COST.prefill_s(*prefill)
    decode_s = summary.output_tokens / rows * COST.decode_s(*decode)
    return slowdown * prefill_s, slowdown * decode_s
