"""A unit of one or several models on one A100-80GB, and the least time its cost model permits."""

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from muxcluster.core.job import Phase, WorkerSpec
from muxcluster.core.kvshape import KvShape, block_bytes
from muxcluster.core.unitspec import ModelSpec, SchedulerSpec, UnitSpec
from muxcluster.offline.choice import JobSummary
from muxcluster.placement.cost import Roofline
from muxcluster.placement.cost.resources import ResourceModel, resource_model
from muxcluster.placement.hardware import gpu_named
from muxcluster.placement.shapes.shape import ModelShape
from muxcluster.sim.core.unit import SimModel, SimUnit

Shapes = Mapping[str, ModelShape]
GPU = gpu_named("A100-80GB")
COST = Roofline(GPU)
USABLE_BYTES = 74e9  # For weights and KV
ITEMSIZE = 2
MAX_LEN = 131_072
BUDGET_TOKENS = 8192
MOST_ROWS = 512
SPLITS = (0.4, 0.5, 0.6, 0.7)  # SM shares that prefill may have beside decode
BLOCK_BYTES = block_bytes(16, ITEMSIZE)


def kv_bytes(shapes: Shapes) -> float:
    """What the weights of all models leave."""
    return USABLE_BYTES - sum(shape.num_params * ITEMSIZE for shape in shapes.values())


def kv_shape(shape: ModelShape) -> KvShape:
    """As the engine is told."""
    return KvShape(shape.num_layers, shape.num_kv_heads, shape.head_dim, ITEMSIZE)


def resources_of(shapes: Shapes) -> dict[str, ResourceModel]:
    """What the plans count by."""
    return {name: resource_model(shape, GPU) for name, shape in shapes.items()}


def make_unit(shapes: Shapes, prefill_share: float | None) -> SimUnit:
    """Prefill beside decode with such a share for prefill, a decode worker a model; None: mixed
    jobs on all SMs, models in turn. A phase that is alone takes all SMs."""
    if prefill_share is None:
        lane, workers = "mixed", (WorkerSpec(0, (1.0,)),)
    else:
        lane, workers = "adbs", _side_by_side(prefill_share, len(shapes))
    models = tuple(
        ModelSpec(name, "", kv_shape(shape), shape.vocab_size, MAX_LEN, (), max_seqs=2 * MOST_ROWS)
        for name, shape in shapes.items()
    )
    policy = SchedulerSpec(lane=lane, token_budget=BUDGET_TOKENS, max_decode_rows=MOST_ROWS)
    num_blocks = int(kv_bytes(shapes)) // BLOCK_BYTES
    spec = UnitSpec("u", models, num_blocks, BLOCK_BYTES, workers, policy)
    return SimUnit(spec, {name: SimModel(shape, COST) for name, shape in shapes.items()})


def _side_by_side(prefill_share: float, num_models: int) -> tuple[WorkerSpec, ...]:
    rest = round(10 * (1 - prefill_share))
    rungs = tuple(step / 10 for step in range(1, rest + 1)) if num_models > 1 else (rest / 10,)
    decoding = (
        WorkerSpec(1 + index, (*rungs, 1.0), frozenset({Phase.DECODE}))
        for index in range(num_models)
    )
    return WorkerSpec(0, (prefill_share, 1.0), frozenset({Phase.PREFILL})), *decoding


def least_s(shapes: Shapes, summaries: Mapping[str, JobSummary]) -> float:
    """The least time for all the jobs, with changes between all splits and mixed jobs.

    Full prefill jobs that compute nothing twice, and decode steps of any model over a full pool,
    as many rows as that holds at the job's mean, so that weights are read least often.
    """
    modes = _alone_and_mixed(shapes, summaries)
    for split in SPLITS:
        modes += _side_by_side_modes(shapes, summaries, split)
    return _solved(modes)


def best_split(shapes: Shapes, summaries: Mapping[str, JobSummary]) -> float:
    """The share of prefill beside decode that permits the least time."""
    alone = _alone_and_mixed(shapes, summaries)
    return min(
        SPLITS, key=lambda split: _solved(alone + _side_by_side_modes(shapes, summaries, split))
    )


# [2 * models]: what part of each job's prefill, then of each job's decode, a second yields.
_Mode = NDArray[np.float64]


def _solved(modes: Sequence[_Mode]) -> float:
    done = np.stack(modes, axis=1)
    return float(linprog(np.ones(len(modes)), A_eq=done, b_eq=np.ones(len(done))).fun)


def _alone_and_mixed(shapes: Shapes, summaries: Mapping[str, JobSummary]) -> list[_Mode]:
    """A prefill or a decode on all SMs, or both of a model in one forward, which takes the longer
    of the two and half of the shorter (sim/core/timing.py): most is gained where they are alike."""
    works = _works(shapes, summaries, 1.0, 1.0)
    alone = np.diag([1 / seconds for seconds, _ in works])
    count = len(shapes)
    return [*alone, *((alone[each] + alone[count + each]) / 1.5 for each in range(count))]


def _side_by_side_modes(
    shapes: Shapes, summaries: Mapping[str, JobSummary], split: float
) -> list[_Mode]:
    """A prefill of any model beside a decode of any."""
    works, count = _works(shapes, summaries, split, 1.0 - split), len(shapes)
    found = []
    for first, second in product(range(count), range(count, 2 * count)):
        slowdown = COST.slowdown((works[first][1], works[second][1]))
        done = np.zeros(2 * count)
        for each in (first, second):
            done[each] = 1 / works[each][0] / slowdown
        found.append(done)
    return found


def _works(
    shapes: Shapes, summaries: Mapping[str, JobSummary], prefill_share: float, decode_share: float
) -> list[tuple[float, float]]:
    """Seconds of all prefill of each job, then of all decode, and what either draws."""
    size = kv_bytes(shapes)
    prefills = [_prefill(summaries[name], shape, prefill_share) for name, shape in shapes.items()]
    decodes = [
        _decode(summaries[name], shape, size, decode_share) for name, shape in shapes.items()
    ]
    return prefills + decodes


def _prefill(summary: JobSummary, shape: ModelShape, share: float) -> tuple[float, float]:
    """Seconds of all prefill, and what it draws of the bandwidth."""
    prompt = summary.prompt_tokens / summary.num_requests
    case = shape, 1, share, BUDGET_TOKENS / prompt, prompt
    num_jobs = summary.prompt_tokens * (1 - summary.sharing) / BUDGET_TOKENS
    return num_jobs * COST.prefill_s(*case), COST.prefill_draw(*case)


def _decode(
    summary: JobSummary, shape: ModelShape, size: float, share: float
) -> tuple[float, float]:
    """The same of all decode, over `size` bytes of KV."""
    resources = resource_model(shape, GPU)
    context = summary.memory_s / resources.kv_s / summary.output_tokens
    rows = min(MOST_ROWS, size / resources.kv_bytes / context)
    case = shape, 1, share, rows, context
    return summary.output_tokens / rows * COST.decode_s(*case), COST.decode_draw(*case)
