"""Small simulated units with round numbers, and arrivals for them."""

import random
from collections.abc import Callable, Sequence

from muxcluster.core.job import Job, Phase, WorkerSpec
from muxcluster.core.kvshape import KvShape, block_bytes
from muxcluster.core.unitspec import ModelSpec, SchedulerSpec, UnitSpec
from muxcluster.placement.cost import Roofline, slowdown
from muxcluster.placement.hardware import GPUS
from muxcluster.placement.shapes.known import SHAPES
from muxcluster.sim.core.timing import Work
from muxcluster.sim.core.unit import SimModel, SimUnit
from muxcluster.workload.arrival import Arrival

SHAPE = SHAPES["llama-7b"]
LADDER = tuple(step / 10 for step in range(1, 11))
WORKERS = (
    WorkerSpec(0, LADDER, frozenset({Phase.PREFILL})),
    WorkerSpec(1, LADDER, frozenset({Phase.DECODE})),
    WorkerSpec(2, LADDER, frozenset({Phase.DECODE})),
)
ALONE = (WorkerSpec(0, (1.0,)),)


def sim_unit(
    unit_id: str = "u",
    models: tuple[str, ...] = ("a", "b"),
    *,
    num_columns: int = 4000,
    lane: str = "adbs",
    max_seqs: int = 64,
) -> SimUnit:
    """Llama-7B under several names on one A100."""
    kv = KvShape(SHAPE.num_layers, SHAPE.num_kv_heads, SHAPE.head_dim, 2)
    specs = tuple(
        ModelSpec(name, "", kv, SHAPE.vocab_size, 2048, (), max_seqs=max_seqs) for name in models
    )
    spec = UnitSpec(
        unit_id,
        specs,
        num_columns * kv.blocks_per_column,
        block_bytes(16, 2),
        ALONE if lane in ("temporal", "mixed") else WORKERS,
        SchedulerSpec(lane=lane),
    )
    cost = Roofline(GPUS["A100-80GB"])
    return SimUnit(spec, {name: SimModel(SHAPE, cost) for name in models})


def arrivals(
    count: int, rate: float, models: tuple[str, ...] = ("a", "b"), seed: int = 0
) -> list[Arrival]:
    """Poisson arrivals with lengths around ShareGPT's."""
    draw = random.Random(seed)
    now, found = 0.0, []
    for index in range(count):
        now += draw.expovariate(rate)
        prompt, output = draw.randint(1, 400), draw.randint(1, 300)
        found.append(Arrival(now, f"r{index}", draw.choice(models), prompt, output))
    return found


class FixedTiming:
    """Every prefill and every decode step takes as long as is said, and draws as much."""

    def __init__(self, prefill: Work, decode: Work) -> None:
        self._works = {Phase.PREFILL: prefill, Phase.DECODE: decode}

    def work(self, job: Job, now: float) -> Work:
        return self._works[job.phase]

    def repeated(self, job: Job) -> Callable[[int], Work]:
        return lambda count: self._works[job.phase]

    def slowdown(self, draws: Sequence[float]) -> float:
        return slowdown(draws)
