"""Setups of BROS's evaluation: models on meshes, lengths, and the compared systems."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bench.hybrid.simulated.lengths import Even, Fitted
from bench.planning.given import given_models, given_plan
from muxcluster.core.unitspec import SchedulerSpec
from muxcluster.placement.execution import UnitPolicy, executions
from muxcluster.placement.hardware import GPUS
from muxcluster.placement.memory import kv_blocks
from muxcluster.placement.plan import Plan, PlannedUnit
from muxcluster.placement.problem import Demand, Node, Problem
from muxcluster.placement.shapes.known import SHAPES
from muxcluster.sim.cases.case import Case
from muxcluster.sim.cases.systems import system_named
from muxcluster.sim.demand.loads import Load, Synthetic
from muxcluster.sim.demand.waves import Waves
from muxcluster.workload.generate import Source
from muxcluster.workload.lengths import Independent, Lengths
from muxcluster.workload.processes import Poisson

TTFT_S, TPOT_S = 0.4, 0.2
# Batch requests of a wave. The paper does not tell; so many are four times what fits in the memory
# of an OPT setup, and as many as vLLM lets run at a time.
WAVE = 256
MAX_SEQS = 256  # vLLM's default
BATCH = Independent(Even(512, 1024), Even(32, 128))


@dataclass(frozen=True, slots=True)
class Setup:
    """A model on a mesh of `num_gpus` GPUs."""

    shape: str
    gpu: str
    num_gpus: int
    max_model_len: int

    @property
    def name(self) -> str:
        """As in the tables."""
        return f"{self.shape} on {self.num_gpus} x {self.gpu}"


SETUPS: Mapping[str, Setup] = {
    setup.shape: setup
    for setup in (
        Setup("opt-13b", "A100-40GB", 2, 2048),
        Setup("opt-30b", "A100-40GB", 4, 2048),
        Setup("llama-3-70b", "A100-80GB", 8, 4096),
    )
}
LENGTHS: Mapping[str, Lengths] = {
    "sharegpt": Independent(Fitted(222.76, 256.36), Fitted(234.51, 268.50)),
    "lmsys": Independent(Fitted(90.50, 148.52), Fitted(237.04, 228.21)),
}
# Prompt and output tokens of an interactive request.
MEANS = {"sharegpt": (222.76, 234.51), "lmsys": (90.50, 237.04)}


@dataclass(frozen=True, slots=True)
class Entry:
    """A system of the comparison."""

    name: str
    system: str  # as `muxcluster simulate --systems` has it
    # fields of SchedulerSpec that differ from the others'
    policy: Mapping[str, Any] = field(default_factory=dict)


OURS, APART = "ours", "ours, blocks apart"
ENTRIES = (
    Entry("fcfs", "temporal:packing=fcfs"),
    Entry("round-robin", "temporal:packing=round-robin"),
    Entry("priority", "temporal:packing=priority"),
    # its prompts in chunks beside decodes, as ours: what the lane does, and what the packing
    Entry("priority, mixed", "mixed:packing=priority"),
    Entry(OURS, "mixed:packing=hybrid"),
)
APART_ENTRY = Entry(APART, "mixed:packing=hybrid", {"shares_blocks": False})
# Whom the paper compares.
COMPARED = tuple(entry for entry in ENTRIES if entry.name in ("fcfs", "round-robin", OURS))
# Where there are interactive requests only, the classes make no difference.
ALONE = tuple(entry for entry in ENTRIES if entry.name in ("fcfs", OURS))


@dataclass(frozen=True, slots=True)
class Point:
    """One load of one setup."""

    setup: str
    lengths: str
    rate_per_s: float
    seconds: float
    has_batch: bool = True  # False leaves the interactive requests alone
    wave: int = WAVE  # batch requests at once
    strictness: float = 1.0  # targets are the published ones divided by it


def case_of(point: Point, entry: Entry, seed: int) -> Case:
    """The point under a system."""
    setup, rate = SETUPS[point.setup], point.rate_per_s
    waves = Waves(setup.shape, point.wave, BATCH, point.seconds, seed)
    source = Source(setup.shape, Poisson(rate), LENGTHS[point.lengths])
    return assembled(
        problem_of(setup, rate, MEANS[point.lengths], point.strictness),
        Synthetic((source,)),
        (waves,) if point.has_batch else (),
        entry,
        Run(point.seconds, seed, rate),
    )


@dataclass(frozen=True, slots=True)
class Run:
    """How long requests come, the seed, and the rate, which is for the report alone."""

    seconds: float
    seed: int
    rate_per_s: float


def assembled(
    problem: Problem, load: Load, waves: tuple[Waves, ...], entry: Entry, run: Run
) -> Case:
    """The one model of the problem on its one node."""
    scheduler = replace(SchedulerSpec(max_decode_rows=MAX_SEQS, may_unshare=True), **entry.policy)
    asked = replace(problem, policy=UnitPolicy(scheduler))
    return Case(
        system_named(entry.system),
        _plan(asked),
        asked,
        load,
        rate_scale=run.rate_per_s,
        duration_s=run.seconds,
        seed=run.seed,
        waves=waves,
    )


def problem_of(
    setup: Setup, rate_per_s: float, means: tuple[float, float], strictness: float = 1.0
) -> Problem:
    """means: prompt and output tokens of an interactive request. strictness: see `Point`."""
    demand = Demand(
        setup.shape,
        SHAPES[setup.shape],
        rate_per_s,
        *means,
        setup.max_model_len,
        MAX_SEQS,
        ttft_s=TTFT_S / strictness,
        tpot_s=TPOT_S / strictness,
    )
    return Problem((demand,), (Node("node-0", setup.num_gpus, GPUS[setup.gpu]),))


def _plan(problem: Problem) -> Plan:
    """The model on the whole node."""
    (node,) = problem.nodes
    execution = executions(node.gpu, node.num_gpus, 1, problem.policy)[0]
    unit = PlannedUnit(
        id="mesh",
        node=node.name,
        gpus=tuple(range(node.num_gpus)),
        tp=node.num_gpus,
        kv_blocks=kv_blocks(node.gpu, node.num_gpus, problem.demands, problem.limits, execution),
        models=given_models(problem.demands),
    )
    return given_plan((unit,))
