"""Cases of the evaluation: the corrected synthetic workload, and the paper's ablations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.planning.cases import points
from bench.planning.given import given_models, given_plan
from muxcluster.core.unitspec import SchedulerSpec
from muxcluster.placement.cost import Profile, read_muxserve
from muxcluster.placement.execution import UnitPolicy, executions
from muxcluster.placement.hardware import GPUS
from muxcluster.placement.memory import kv_blocks
from muxcluster.placement.plan import Plan, PlannedUnit
from muxcluster.placement.problem import Demand, Node, Problem
from muxcluster.placement.shapes.known import SHAPES
from muxcluster.sim.cases.case import Case
from muxcluster.sim.cases.sweep import Cache
from muxcluster.sim.cases.systems import system_named
from muxcluster.sim.cases.systems_units import asked_by
from muxcluster.sim.demand.loads import Synthetic
from muxcluster.workload.generate import Source
from muxcluster.workload.lengths import Independent, Limited
from muxcluster.workload.marginals import LogNormal
from muxcluster.workload.processes import Poisson

SYSTEMS = ("muxserve", "spatial", "spatial-mixed", "temporal", "mixed")
RIVALS = SYSTEMS[1:]
ALPHAS = (0.7, 1.3, 2.1)
SCALES = (0.5, 0.75, 1.0, 1.25, 2.0)  # The last saturates all but the most skewed rates.
SLO_SCALE = 8.0
POLICY = UnitPolicy(SchedulerSpec(max_decode_rows=1024, may_unshare=True))
_SIGMA_AS_MEDIAN = 0.6  # Median of a log-normal length over its mean: a sigma of 1.0
_LONGEST = 1024
_DRAWS = 200_000
_GPU = GPUS["A100-80GB"]


@dataclass(frozen=True, slots=True)
class Duration:
    """How long each case lasts, in virtual seconds, and with which seeds it is repeated."""

    seconds: float
    seeds: tuple[int, ...]


def problems(data: Path) -> Mapping[float, Problem]:
    """By alpha: 19 models on 32 A100s, at rate scale 1 (40 requests/s for the most popular)."""
    found = {point.name: point.problem for point in points(data)}
    return {alpha: replace(found[f"synth19_a{alpha}_s1.0"], policy=POLICY) for alpha in ALPHAS}


def scaled(problem: Problem, scale: float) -> Problem:
    """The same at other rates."""
    demands = tuple(replace(each, rate=each.rate * scale) for each in problem.demands)
    return replace(problem, demands=demands)


def cases_of(
    system: str, problem: Problem, scale: float, duration: Duration, cache: Cache
) -> list[Case]:
    """A case a seed: all models loaded from the first to the last second."""
    asked = scaled(problem, scale)
    named = system_named(system)
    plan = cache.plan(named.method, asked_by(named, asked))
    return [case_of(system, plan, asked, duration.seconds, seed, scale) for seed in duration.seeds]


def case_of(
    system: str, plan: Plan, problem: Problem, seconds: float, seed: int, scale: float = 1.0
) -> Case:
    """Every model of the problem loaded for so many seconds. scale: for the report alone."""
    return Case(
        system_named(system),
        plan,
        problem,
        Synthetic(tuple(_source(demand) for demand in problem.demands)),
        rate_scale=scale,
        duration_s=seconds,
        seed=seed,
        slo_scale=SLO_SCALE,
    )


def _source(demand: Demand) -> Source:
    prompt, output = (
        LogNormal.of_mean(mean, {50: mean * _SIGMA_AS_MEDIAN})
        for mean in (demand.prompt_tokens, demand.output_tokens)
    )
    lengths = Limited(Independent(prompt, output), _LONGEST, _LONGEST)
    return Source(demand.name, Poisson(demand.rate), lengths)


def output_tokens(problem: Problem) -> dict[str, float]:
    """Mean output of a request by model: a little below the demand's, for long ones are cut."""
    rng = np.random.default_rng(0)
    return {
        demand.name: float(_source(demand).lengths.draw(rng, _DRAWS)[1].mean())
        for demand in problem.demands
    }


@dataclass(frozen=True, slots=True)
class Ablation:
    """Models that share one mesh of 4 GPUs."""

    name: str
    problem: Problem
    paper: Mapping[str, float]  # rate-weighted requests/s by system

    def cases(self, duration: Duration) -> dict[str, list[Case]]:
        """By system, all on the same mesh."""
        plan = one_mesh(self.problem)
        return {
            system: [
                case_of(system, plan, self.problem, duration.seconds, s) for s in duration.seeds
            ]
            for system in self.paper
        }


def ablations(data: Path) -> tuple[Ablation, ...]:
    """MuxServe's ADBS ablation (§4.4). Lengths of the first are not published but as 2:1:1."""
    profile = read_muxserve(data / "muxserve" / "llama_a100_profile.json")
    three = (
        _demand("llama-30b", 2.0, 512, 256),
        _demand("llama-13b", 8.0, 256, 128),
        _demand("llama-7b", 8.0, 256, 128),
    )
    two = (_demand("llama-65b", 1.0, 778, 251), _demand("llama-30b", 8.0, 128, 126))
    return (
        Ablation(
            "30b+13b+7b",
            _problem(three, profile),
            {"fcfs": 3.8, "round-robin": 4.1, "muxserve": 6.2},
        ),
        Ablation(
            "65b+30b", _problem(two, profile), {"fcfs": 3.2, "round-robin": 4.9, "muxserve": 6.6}
        ),
    )


def _demand(name: str, rate: float, prompt: float, output: float) -> Demand:
    return Demand(name, SHAPES[name], rate, prompt, output, 2048, 1024)


def _problem(demands: Sequence[Demand], profile: Profile) -> Problem:
    return Problem(tuple(demands), (Node("node-0", 4, _GPU),), profiles=(profile,), policy=POLICY)


def one_mesh(problem: Problem) -> Plan:
    """All models on the 4 GPUs. What is expected of each is left at its rate."""
    execution = executions(_GPU, 4, len(problem.demands), problem.policy)[0]
    blocks = kv_blocks(_GPU, 4, problem.demands, problem.limits, execution)
    unit = PlannedUnit(
        id="mesh",
        node="node-0",
        gpus=(0, 1, 2, 3),
        tp=4,
        kv_blocks=blocks,
        models=given_models(problem.demands, sm_share=0.5),
    )
    return given_plan((unit,))
