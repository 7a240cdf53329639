"""What a unit asks of Ray: a placement group shaped like its mesh."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from muxcluster.core.unitspec import UnitSpec

UNIT_CPUS = 0.5
"""Logical CPUs of the unit's own process; its workers are its children, unseen by Ray."""


@dataclass(frozen=True, slots=True)
class MeshRequest:
    """bundles: one per GPU (one in all on CPU), all on one node: a mesh never spans nodes."""

    bundles: tuple[Mapping[str, float], ...]
    num_cpus: float
    num_gpus: float


def mesh_request(spec: UnitSpec) -> MeshRequest:
    """The resources of `spec`'s mesh; on CPU only a token share, for Ray meters no threads."""
    if not spec.device.startswith("cuda"):
        return MeshRequest(({"CPU": UNIT_CPUS},), UNIT_CPUS, 0.0)
    return MeshRequest(({"CPU": UNIT_CPUS, "GPU": 1.0},), UNIT_CPUS, 1.0)


def on_granted_gpu(spec: UnitSpec) -> UnitSpec:
    """The same unit on the GPU Ray granted: it is the only visible one, so its index is 0."""
    return replace(spec, device="cuda:0") if spec.device.startswith("cuda") else spec
