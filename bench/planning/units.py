"""Is the unit that is simulated the one that worker processes receive?

From a configuration file two ways lead to units: `problem` and `units_of`, which the simulator
runs, and `unit_specs`, which is sent to a unit's actor, settled there by what its node supports,
and sent on to worker processes. Both ends are compared here: the plan passes through plan.json, the
engine's specification through the codec of the worker processes, and the workers are those that
the launcher of the unit's partition would start.
"""

import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from bench.planning.cases import points
from muxcluster.channel.codec import Start, decode, encode
from muxcluster.config.load import Config, load_config
from muxcluster.config.planfile import whole_plan
from muxcluster.config.planner_input import nodes_of, problem
from muxcluster.config.planning import plan_for
from muxcluster.config.units import unit_specs
from muxcluster.core.errors import EngineFailure, InfeasiblePlan
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.gpu.mps.launcher import MpsLauncher
from muxcluster.engine.processes.launcher import ForkLauncher
from muxcluster.engine.unit.partition_choice import settle_partition
from muxcluster.placement.hardware import WHOLE
from muxcluster.placement.plan import Plan
from muxcluster.placement.problem import Node
from muxcluster.placement.shapes.known import SHAPES
from muxcluster.sim.core.planned import units_of

_PROFILE = Path("muxserve") / "llama_a100_profile.json"
_EXAMPLE = Path(__file__).resolve().parent.parent.parent / "examples" / "llama-a100.yaml"
_KINDS = ("A100-80GB", "H100", "L4", "L40S", "RTX4090", "H200")
_SHAPES = ("llama-3.2-1b", "qwen3-1.7b", "llama-3.1-8b", "qwen2.5-14b", "qwen3-30b-a3b")
_GREEN = {"cuGreenCtxStreamCreate": None}  # a driver that has green contexts
_WIDE = ("llama-3.1-70b", "qwen2.5-32b", "mixtral-8x7b")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A configuration to compare, as the content of its file."""

    name: str
    content: Mapping[str, Any]
    can_share: bool = True  # its nodes have MPS and green contexts; else neither


@dataclass(frozen=True, slots=True)
class Compared:
    """What was compared, and what differs: one line each."""

    num_clusters: int
    num_units: int
    lanes: Mapping[str, int]  # units by lane
    differences: tuple[str, ...]


def clusters(data: Path, num_random: int, seed: int) -> Iterator[Cluster]:
    """Yield all published points, the example to plan with, and random clusters."""
    for point in points(data):
        yield Cluster(point.name, _published(point.problem, data / _PROFILE))
    yield Cluster(_EXAMPLE.name, yaml.safe_load(_EXAMPLE.read_text(encoding="utf-8")))
    draw = random.Random(seed)
    yield from (_random(draw, f"random-{number}") for number in range(num_random))


def compare(asked: Iterator[Cluster]) -> Compared:
    """Plan each cluster and compare its units; clusters that are too small are left out."""
    num_clusters, lanes, found = 0, dict[str, int](), list[str]()
    with tempfile.TemporaryDirectory() as name:
        for cluster in asked:
            try:
                pairs = list(_units(cluster, Path(name)))
            except InfeasiblePlan:
                continue
            num_clusters += 1
            for simulated, received in pairs:
                lane = received.scheduler.lane
                lanes[lane] = lanes.get(lane, 0) + 1
                found += [f"{cluster.name}: {text}" for text in differences(simulated, received)]
    return Compared(num_clusters, sum(lanes.values()), lanes, tuple(found))


def differences(simulated: UnitSpec, received: UnitSpec) -> list[str]:
    """Return how the units differ in what decides about jobs; not in paths and dtypes' names."""
    texts = []
    for key in ("tp", "num_blocks", "block_bytes", "num_host_blocks", "host_link", "scheduler"):
        texts += _different(simulated, received, key, received.unit_id)
    if _rungs(simulated) != _rungs(received):
        texts.append(f"{received.unit_id}: rungs {_rungs(simulated)} and {_rungs(received)}")
    texts += _different(simulated, received, "workers", received.unit_id)
    for ours, theirs in zip(simulated.models, received.models, strict=True):
        for key in (
            *("name", "shape", "vocab_size", "max_model_len", "max_seqs", "prefix_caching"),
            *("rate_per_s", "mean_prompt_tokens", "mean_output_tokens", "slo", "weight_bytes"),
        ):
            texts += _different(ours, theirs, key, f"{received.unit_id} {theirs.name}")
    return texts


def _different(ours: object, theirs: object, key: str, where: str) -> list[str]:
    first, second = getattr(ours, key), getattr(theirs, key)
    return [] if first == second else [f"{where}: {key} {first} and {second}"]


def _rungs(spec: UnitSpec) -> list[tuple[int, float | None]]:
    """Return the worker processes (worker, its only share), or green contexts, of the unit."""
    if spec.device != "cpu" and len(spec.workers) > 1:
        plan = MpsLauncher(None).plan(spec)
    else:
        plan = ForkLauncher().plan(spec)
    return [(rung.worker_id, rung.share) for rung in plan.rungs]


def _units(cluster: Cluster, folder: Path) -> Iterator[tuple[UnitSpec, UnitSpec]]:
    """Yield (simulated, received) units of the cluster's plan. Raises InfeasiblePlan."""
    file = folder / "muxcluster.yaml"
    file.write_text(yaml.safe_dump(cluster.content), encoding="utf-8")
    config = load_config(file)
    # Only shapes are given; an engine wants a path too.
    models = tuple(replace(model, path=Path("/models") / model.name) for model in config.models)
    config = replace(config, models=models)
    nodes = _nodes(config, can_share=cluster.can_share)
    plan = _through_json(config, plan_for(config, nodes), folder)
    simulated = units_of(plan, problem(config, nodes))
    for ours, theirs in zip(simulated, unit_specs(config, plan, nodes), strict=True):
        yield ours.spec, _received(theirs, can_share=cluster.can_share)


def _nodes(config: Config, *, can_share: bool) -> tuple[Node, ...]:
    """Return the file's nodes, as they report themselves once a unit has started there."""
    nodes = nodes_of(config)
    if can_share:
        return nodes
    return tuple(replace(node, gpu=replace(node.gpu, shares=WHOLE)) for node in nodes)


def _through_json(config: Config, plan: Plan, folder: Path) -> Plan:
    file = folder / "plan.json"
    file.write_text(plan.to_json(), encoding="utf-8")
    return whole_plan(file, config)


def _received(spec: UnitSpec, *, can_share: bool) -> UnitSpec:
    """Return what the owner of the unit's workers reads from its pipe."""

    def no_daemon(gpu_id: str) -> None:
        raise EngineFailure(f"no MPS daemon for {gpu_id}")

    def no_driver(name: str) -> Any:
        raise OSError(f"no {name}")

    settled = (
        settle_partition(spec, lambda gpu_id: None, lambda name: SimpleNamespace(**_GREEN))
        if can_share
        else settle_partition(spec, no_daemon, no_driver)
    )
    message = decode(encode(Start(settled)))
    assert isinstance(message, Start)
    return message.spec


def _published(asked: Any, profile: Path) -> dict[str, Any]:
    names = {id(shape): name for name, shape in SHAPES.items()}
    return {
        "models": [
            {
                "name": each.name,
                "shape": names[id(each.shape)],
                "rate": each.rate,
                "prompt_tokens": each.prompt_tokens,
                "output_tokens": each.output_tokens,
                "max_model_len": each.max_model_len,
                "max_seqs": each.max_seqs,
            }
            for each in asked.demands
        ],
        "cluster": {
            "nodes": [
                {"name": node.name, "gpus": node.num_gpus, "gpu": node.gpu.name}
                for node in asked.nodes
            ],
            "profiles": [str(profile.absolute())],
        },
    }


def _random(draw: random.Random, name: str) -> Cluster:
    nodes: list[dict[str, Any]] = [
        {"name": f"n{number}", "gpus": draw.choice((1, 1, 2, 4, 8)), "gpu": draw.choice(_KINDS)}
        for number in range(draw.choice((1, 1, 1, 2, 3)))
    ]
    if draw.random() < 0.15:
        nodes = [{"name": "c", "gpu": "cpu", "cores": draw.choice((1, 2, 8)), "memory_gb": 256}]
    is_cpu = nodes[0]["gpu"] == "cpu"
    num_gpus = sum(node.get("gpus", 1) for node in nodes)
    is_small = is_cpu or any(node["gpu"] in ("L4", "RTX4090") for node in nodes)
    shapes = _SHAPES[:3] if is_small else (*_SHAPES, *(_WIDE if num_gpus >= 8 else ()))
    models = [
        {
            "name": f"m{number}",
            "shape": draw.choice(shapes),
            "rate": round(draw.uniform(0.05, 8.0), 2),
            "prompt_tokens": draw.choice((64, 161, 700)),
            "output_tokens": draw.choice((32, 338)),
            "max_model_len": draw.choice((2048, 4096)),
            "max_seqs": draw.choice((16, 64, 256)),
            **({"slo": {"ttft": 1.0, "tpot": 0.1}} if draw.random() < 0.5 else {}),
        }
        for number in range(draw.randint(1, min(8, 1 + 2 * num_gpus)))
    ]
    return Cluster(
        name,
        {"models": models, "cluster": {"nodes": nodes}, "policy": _policy(draw, is_cpu=is_cpu)},
        can_share=draw.random() < 0.8,
    )


def _policy(draw: random.Random, *, is_cpu: bool) -> dict[str, Any]:
    """Return a random policy; named partitions are left to GPUs of their own."""
    partitions: Sequence[str] = ("auto", "threads", "none") if is_cpu else ("auto", "auto", "none")
    return {
        "scheduler": draw.choice(("adbs", "adbs", "mixed", "temporal", "round-robin")),
        "sharing": draw.choice(("auto", "always")),
        "packing": draw.choice(("priority", "hybrid", "fcfs")),
        "partition": draw.choice(partitions),
        "block_tokens": draw.choice((16, 32, 64)),
        "token_budget": draw.choice((512, 2048)),
        "max_decode_rows": draw.choice((64, 256)),
        **({"kv_gb": 6} if draw.random() < 0.2 else {}),
        **({"host_memory_gib": 2} if draw.random() < 0.2 else {}),
    }
