"""Problems for bench/placement.py: the published planner points, and large random fleets."""

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from muxcluster.placement.cost import Profile, read_muxserve
from muxcluster.placement.hardware import GPUS
from muxcluster.placement.problem import Demand, Node, Problem
from muxcluster.placement.shapes.known import SHAPES

SMALL_FLEET = (100, 128)
LARGE_FLEET = (1000, 1024)  # (models, GPUs)
_FLEET_SHAPES = (
    *("llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b", "llama-3.1-70b", "mistral-7b-v0.3"),
    *("qwen2.5-7b", "qwen2.5-14b", "qwen2.5-32b", "qwen3-30b-a3b", "mixtral-8x7b"),
)
_LENGTHS = ((161, 338), (512, 128), (1024, 256))  # Mean (prompt, output) tokens
_MIXED = ("H100", "A100-80GB", "L40S")


@dataclass(frozen=True, slots=True)
class Point:
    """One of the published planner's inputs, and the best objective value known for it."""

    name: str
    problem: Problem
    as_is: float
    best_known: float
    as_is_s: float  # seconds that the reference planner took, as recorded on another machine

    @property
    def num_gpus(self) -> int:
        """Of the cluster."""
        return sum(node.num_gpus for node in self.problem.nodes)

    def scaled(self, factor: float) -> Problem:
        """The same at other rates."""
        demands = (replace(each, rate=each.rate * factor) for each in self.problem.demands)
        return replace(self.problem, demands=tuple(demands))


def points(data: Path) -> Iterator[Point]:
    """All of planner_points.json, with the published A100 profile to predict from."""
    folder = data / "muxserve"
    profile = read_muxserve(folder / "llama_a100_profile.json")
    for raw in json.loads((folder / "planner_points.json").read_text(encoding="utf-8")):
        known = [
            raw[name]["F"]
            for name in ("reference_as_is", "reference_index_bug_fixed", "best_found_hill_climb")
            if name in raw
        ]
        as_is = raw["reference_as_is"]
        yield Point(raw["name"], _problem(raw, profile), as_is["F"], max(known), as_is["seconds"])


def _problem(raw: Mapping[str, Any], profile: Profile) -> Problem:
    demands = tuple(
        Demand(each["name"], SHAPES[each["model"]], each["rate"], 161, 338, 2048, 1024)
        for each in raw["models"]
    )
    cluster = raw["cluster"]
    nodes = tuple(
        Node(f"node-{index}", cluster["ngpus_per_node"], GPUS["A100-80GB"])
        for index in range(cluster["nnodes"])
    )
    return Problem(demands, nodes, profiles=(profile,))


def fleet(num_models: int, num_gpus: int, *, mixed: bool, seed: int) -> Problem:
    """Models of ten shapes, popularity 1 / rank, three requests/s a GPU; nodes of eight GPUs.

    mixed: a third each of H100, A100-80GB and L40S nodes; else all A100-80GB.
    """
    draw = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(num_models)]
    scale = 3 * num_gpus / sum(weights)
    demands = []
    for rank, weight in enumerate(weights):
        prompt, output = draw.choice(_LENGTHS)
        shape = SHAPES[draw.choice(_FLEET_SHAPES)]
        demands.append(Demand(f"m{rank:04}", shape, weight * scale, prompt, output, 4096, 256))
    kinds = _MIXED if mixed else ("A100-80GB",)
    nodes = tuple(
        Node(f"node-{index:03}", 8, GPUS[kinds[index % len(kinds)]])
        for index in range(num_gpus // 8)
    )
    return Problem(tuple(demands), nodes)
