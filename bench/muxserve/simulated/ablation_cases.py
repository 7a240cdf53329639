"""Cases of the paper's ablations: placement, resource manager; and of its ChatLMSYS evaluation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.muxserve.simulated.cases import (
    Duration,
    ablations,
    case_of,
    cases_of,
    one_mesh,
    scaled,
)
from bench.planning.cases import points
from bench.traces.muxserve import (
    CHATLMSYS_OUTPUT_TOKENS,
    CHATLMSYS_PROMPT_TOKENS,
    SHAREGPT_OUTPUT_TOKENS,
    SHAREGPT_PROMPT_TOKENS,
    read_chatlmsys_rates,
)
from muxcluster.placement.cost import Profile, read_muxserve
from muxcluster.placement.hardware import GPUS
from muxcluster.placement.problem import Demand, Node, Problem
from muxcluster.placement.shapes.known import SHAPES
from muxcluster.sim.cases.case import Case
from muxcluster.sim.cases.sweep import Cache
from muxcluster.workload.popularity import power_law_rates

GREEDY = "muxserve:placement=memory-greedy"
CHAT_SYSTEMS = ("muxserve", "spatial", "spatial-load", "temporal")
NEITHER = "muxserve:sharing=off:quotas=off"
UNSHARED = "muxserve:sharing=mixed"
FIXED = "muxserve:quotas=off"
# Before a system's name: its KV pool is divided as if all models were equally popular.
EVEN = "even "
_PLACEMENTS = (("assumed4_8gpu", "8 GPUs, 4 models"), ("assumed7_16gpu", "16 GPUs, 7 models"))
# Models llm-0 to llm-3 on one mesh, the most popular first.
COLOCATED = ("llama-7b", "llama-13b", "llama-30b", "llama-65b")
# Requests/s of the most popular colocated model: more than one mesh of 4 GPUs serves.
_TOP_PER_S = 10.0
_GPU = GPUS["A100-80GB"]


@dataclass(frozen=True, slots=True)
class Point:
    """Systems under one load."""

    experiment: str
    load: str
    cases: Mapping[str, tuple[Case, ...]]  # a seed each, by the name that the table has


def placement_points(
    data: Path, scales: Sequence[float], duration: Duration, cache: Cache
) -> Iterator[Point]:
    """Our planner against most memory free first, both under ADBS (MuxServe §4.4).

    The paper gives no rates, but that half of the models have more than 70 % of the requests. So
    have the problems of the data's planner points, taken at multiples that fill the GPUs.
    """
    problems = {point.name: point.problem for point in points(data)}
    for name, label in _PLACEMENTS:
        for scale in scales:
            cases = {
                system: tuple(cases_of(system, problems[name], scale, duration, cache))
                for system in ("muxserve", GREEDY)
            }
            yield Point("placement", f"{label} x {scale:g}", cases)


def resource_points(data: Path, alphas: Sequence[float], duration: Duration) -> Iterator[Point]:
    """Parts of the resource manager on and off: 4 models on one mesh of 4 GPUs (MuxServe §4.4).

    Which models and rates the paper does not say: 7B to 65B, the most popular the smallest. How it
    divides a pool that is not unified neither: for ever by the planned demand, or evenly, which is
    what an operator has who does not know the popularity.
    """
    profile = read_muxserve(data / "muxserve" / "llama_a100_profile.json")
    for alpha in alphas:
        asked = _colocated(alpha, profile)
        known = {name: _on_one_mesh(name, asked, asked, duration) for name in (NEITHER, FIXED)}
        known["muxserve"] = _on_one_mesh("muxserve", asked, asked, duration)
        even = _colocated(0.0, profile)
        unknown = {
            EVEN + name: _on_one_mesh(name, even, asked, duration) for name in (FIXED, "muxserve")
        }
        yield Point("resources", f"alpha {alpha:g}", known | unknown)


def wide_points(
    data: Path, alphas: Sequence[float], overloads: Sequence[float], duration: Duration
) -> Iterator[Point]:
    """SMs of units over 4 GPUs shared, and the same units with one mixed job at a time.

    The meshes of `resource_points`, and those of the ADBS ablation at multiples of its rates. Mixed
    jobs twice: with the same quotas, so that only the SMs differ, and as the lane `mixed` has them,
    whose models take what KV they find.
    """
    profile = read_muxserve(data / "muxserve" / "llama_a100_profile.json")
    asked = {f"4 models, alpha {alpha:g}": _colocated(alpha, profile) for alpha in alphas}
    for each in ablations(data):
        for overload in overloads:
            asked[f"{each.name} x {overload:g}"] = scaled(each.problem, overload)
    for load, problem in asked.items():
        cases = {
            system: _on_one_mesh(system, problem, problem, duration)
            for system in ("muxserve", UNSHARED, "mixed")
        }
        yield Point("wide", load, cases)


def chatlmsys_points(
    data: Path, condensations: Sequence[int], duration: Duration, cache: Cache
) -> Iterator[Point]:
    """16 models on 32 GPUs at the rates of ChatLMSYS, time condensed by each factor (§4.3).

    Lengths are log-normal around the release's means; the trace's own times are not released.
    """
    profile = read_muxserve(data / "muxserve" / "llama_a100_profile.json")
    rates = data / "muxserve" / "chatlmsys_rates_day55.csv"
    for factor in condensations:
        demands = tuple(
            _demand(each.name, each.shape, each.rate_per_s, *_CHAT_LENGTHS)
            for each in read_chatlmsys_rates(rates, factor)
        )
        problem = _problem(demands, 4, 8, profile)
        cases = {
            system: tuple(cases_of(system, problem, 1.0, duration, cache))
            for system in CHAT_SYSTEMS
        }
        yield Point("chatlmsys", f"x {factor}", cases)


_CHAT_LENGTHS = (CHATLMSYS_PROMPT_TOKENS, CHATLMSYS_OUTPUT_TOKENS)
_SHAREGPT_LENGTHS = (SHAREGPT_PROMPT_TOKENS, SHAREGPT_OUTPUT_TOKENS)


def _on_one_mesh(
    system: str, planned: Problem, asked: Problem, duration: Duration
) -> tuple[Case, ...]:
    """planned: what the pool is divided by at first. asked: what comes."""
    plan = one_mesh(planned)
    loaded = (case_of(system, plan, asked, duration.seconds, seed) for seed in duration.seeds)
    return tuple(replace(case, problem=planned) for case in loaded)


def _colocated(alpha: float, profile: Profile) -> Problem:
    rates = power_law_rates(len(COLOCATED), alpha, _TOP_PER_S).tolist()
    demands = tuple(
        _demand(f"llm-{index}", shape, rate, *_SHAREGPT_LENGTHS)
        for index, (shape, rate) in enumerate(zip(COLOCATED, rates, strict=True))
    )
    return _problem(demands, 1, 4, profile)


def _demand(name: str, shape: str, rate: float, prompt: float, output: float) -> Demand:
    return Demand(name, SHAPES[shape], rate, prompt, output, 2048, 1024)


def _problem(
    demands: tuple[Demand, ...], num_nodes: int, num_gpus: int, profile: Profile
) -> Problem:
    nodes = tuple(Node(f"node-{index}", num_gpus, _GPU) for index in range(num_nodes))
    return Problem(demands, nodes, profiles=(profile,))
