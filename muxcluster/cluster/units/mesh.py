"""Ray's resources of a unit: a placement group shaped like its mesh."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from muxcluster.core.unitspec import UnitSpec

# Logical CPUs of the unit's own process; Ray does not see its worker processes.
UNIT_CPUS = 0.5


@dataclass(frozen=True, slots=True)
class MeshRequest:
    """The resources that Ray reserves for a mesh."""

    # Exactly one: a mesh never spans nodes, and one process sees all of its GPUs
    bundles: tuple[Mapping[str, float], ...]
    num_cpus: float
    num_gpus: float


def mesh_request(num_gpus: float) -> MeshRequest:
    """Return the resources of a mesh of `num_gpus`, declared ones too; only a nominal share of the
    CPU, because Ray does not meter threads."""
    if not num_gpus:
        return MeshRequest(({"CPU": UNIT_CPUS},), UNIT_CPUS, 0.0)
    return MeshRequest(({"CPU": UNIT_CPUS, "GPU": num_gpus},), UNIT_CPUS, num_gpus)


def on_granted_gpu(spec: UnitSpec) -> UnitSpec:
    """Return the unit on the GPUs that Ray granted: only they are visible, so they count from 0."""
    if not spec.device.startswith("cuda"):
        return spec
    granted = tuple(f"cuda:{index}" for index in range(len(spec.rank_devices)))
    return replace(spec, device="cuda:0", rank_devices=granted)
