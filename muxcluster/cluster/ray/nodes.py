"""Nodes of a Ray cluster: their resources and reachability."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import ray

from muxcluster.config.load import Config
from muxcluster.config.planner_input import nodes_of
from muxcluster.core.errors import ConfigError
from muxcluster.placement.hardware import cpu, gpu_named
from muxcluster.placement.names import nearest
from muxcluster.placement.problem import Node

HEAD_RESOURCE = "node:__internal_head__"
GPU_LABEL = "ray.io/accelerator-type"
PROBE_TIMEOUT_S = 1.0
# Probes in a row without an answer after which a node counts as unreachable: with the timeout and
# the pause between probes less than 5 s. Ray itself needs 63 s by default if a link is cut.
MOST_MISSES = 3
_PREFIX = "accelerator_type:"


@dataclass(frozen=True, slots=True)
class RayNode:
    """A node as Ray reports it."""

    name: str  # unique name in the plan
    node_id: str
    ip: str
    port: int  # of its raylet
    is_alive: bool
    is_head: bool = False
    num_gpus: int = 0
    num_cpus: float = 0.0
    memory_bytes: int = 0
    gpu: str | None = None


def ray_nodes() -> tuple[RayNode, ...]:
    """Return all nodes that Ray remembers, dead ones too; a node that came back is a new one."""
    return nodes_from(ray.nodes())


def nodes_from(reports: Sequence[Mapping[str, Any]]) -> tuple[RayNode, ...]:
    """Convert Ray's reports of its nodes."""
    names = Counter(node["NodeName"] for node in reports if node["Alive"])
    return tuple(_node(node, names[node["NodeName"]] > 1) for node in reports)


def _node(report: Mapping[str, Any], is_ambiguous: bool) -> RayNode:
    resources = report["Resources"]
    types = [key.removeprefix(_PREFIX) for key in resources if key.startswith(_PREFIX)]
    name, node_id = report["NodeName"], report["NodeID"]
    return RayNode(
        name=f"{name}-{node_id[:6]}" if is_ambiguous else name,
        node_id=node_id,
        ip=report["NodeManagerAddress"],
        port=report["NodeManagerPort"],
        is_alive=report["Alive"],
        is_head=HEAD_RESOURCE in resources,
        num_gpus=int(resources.get("GPU", 0)),
        num_cpus=resources.get("CPU", 0.0),
        memory_bytes=int(resources.get("memory", 0)),
        gpu=report.get("Labels", {}).get(GPU_LABEL) or next(iter(types), None),
    )


def planning_nodes(config: Config, found: Sequence[RayNode]) -> tuple[Node, ...]:
    """Return the nodes that the planner may use: those that the file lists, or all with GPUs, or
    all if none has any.

    Raises ConfigError if a listed node is not there or has fewer GPUs, or a GPU is unknown.
    """
    if config.cluster.nodes is not None:
        return _listed(config, found)
    with_gpus = [node for node in found if node.num_gpus]
    if not with_gpus:
        cores = config.policy.num_threads
        return tuple(
            Node(each.name, 1, cpu(cores or max(1, int(each.num_cpus)), each.memory_bytes))
            for each in found
            if each.num_cpus >= 1
        )
    return tuple(_with_gpus(config, node) for node in with_gpus)


def remaining_nodes(
    config: Config, found: Sequence[RayNode], *, needs_gpus: bool
) -> tuple[Node, ...]:
    """Like `planning_nodes`, but for a running cluster: what cannot be used is left out, not
    refused.

    needs_gpus: nodes without GPUs do not replace lost ones that had some.
    """
    names = {node.name for node in found}
    if config.cluster.nodes is not None:
        return tuple(node for node in nodes_of(config) if node.name in names)
    known = [node for node in found if node.gpu is None or _is_known(node.gpu)]
    labelled = [node for node in known if node.gpu is not None or not node.num_gpus]
    return planning_nodes(config, [n for n in labelled if n.num_gpus or not needs_gpus])


def _is_known(gpu: str) -> bool:
    try:
        gpu_named(gpu)
    except ValueError:
        return False
    return True


def _with_gpus(config: Config, node: RayNode) -> Node:
    label = f"start Ray there with --labels {GPU_LABEL}=A100-80GB or what it has"
    if node.gpu is None:
        message = f"Ray does not say what GPUs node {node.name} has: {label}"
        raise ConfigError(config.file, "cluster.nodes", message)
    try:
        return Node(node.name, node.num_gpus, gpu_named(node.gpu))
    except ValueError as error:
        message = f"node {node.name}: {error}; {label}"
        raise ConfigError(config.file, "cluster.nodes", message) from error


def _listed(config: Config, found: Sequence[RayNode]) -> tuple[Node, ...]:
    by_name = {node.name: node for node in found}
    for index, node in enumerate(nodes_of(config)):
        key = f"cluster.nodes[{index}]"
        if node.name not in by_name:
            message = f"Ray has no living node {node.name!r}{nearest(node.name, by_name)}"
            raise ConfigError(config.file, f"{key}.name", message)
        there = by_name[node.name].num_gpus
        if not node.gpu.is_cpu and there < node.num_gpus:
            raise ConfigError(config.file, f"{key}.gpus", f"Ray has {there} on {node.name}")
    return nodes_of(config)


class NodeProbe:
    """Probe of living nodes by their raylets' ports, because a cut link reports nothing."""

    def __init__(self) -> None:
        self._misses: Counter[str] = Counter()

    async def probe(self, nodes: Sequence[RayNode]) -> frozenset[str]:
        """Probe all nodes at once; return ids of those that Ray calls alive and that answer."""
        living = [node for node in nodes if node.is_alive]
        answers = await asyncio.gather(*(_answers(node) for node in living))
        for node, answer in zip(living, answers, strict=True):
            self._misses[node.node_id] = 0 if answer else self._misses[node.node_id] + 1
        return frozenset(n.node_id for n in living if self._misses[n.node_id] < MOST_MISSES)


async def _answers(node: RayNode) -> bool:
    began_s = monotonic()
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            _, writer = await asyncio.open_connection(node.ip, node.port)
    except TimeoutError:
        # If this process itself was delayed, the node's state is unknown.
        return monotonic() - began_s > 2 * PROBE_TIMEOUT_S
    except OSError:
        return False
    writer.close()
    return True
