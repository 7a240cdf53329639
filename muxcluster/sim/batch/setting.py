"""The units on which a batch job runs: those that serve its model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from muxcluster.core.unitspec import ModelSpec
from muxcluster.offline.blend.resources import ResourceModel, resource_model
from muxcluster.placement.plan import Plan
from muxcluster.placement.problem import Problem
from muxcluster.sim.batch.load import BatchFile
from muxcluster.sim.core.unit import SimUnit


@dataclass(frozen=True, slots=True)
class Setting:
    """A unit that runs a job, and what the job's plan needs of it."""

    unit: SimUnit
    spec: ModelSpec
    resources: ResourceModel

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the whole pool, as if nothing else ran."""
        return self.unit.spec.num_blocks * self.unit.spec.mesh_block_bytes

    def file(self, path: Path, digest: str = "") -> BatchFile:
        """Return the file of a job for this unit."""
        spec = self.spec
        return BatchFile(
            path,
            spec.name,
            self.resources,
            self.size_bytes,
            spec.shape.block_tokens(self.unit.spec.block_bytes),
            spec.max_model_len,
            round(spec.mean_output_tokens),
            digest,
        )


def settings_among(
    units: Sequence[SimUnit], made: Plan, asked: Problem, model: str
) -> tuple[Setting, ...]:
    """Return the units of the plan `made` that serve the model, by falling planned throughput.

    asked: the problem that the plan solves. Raises KeyError for a node that it does not have.
    """
    gpus = {node.name: node.gpu for node in asked.nodes}
    found = []
    for planned, unit in zip(made.units, units, strict=True):
        if model not in unit.models:
            continue
        spec = next(each for each in unit.spec.models if each.name == model)
        shape, gpu = unit.models[model].shape, gpus[planned.node]
        resources = resource_model(shape, gpu, unit.tp, spec.shape.itemsize)
        served = max(each.throughput for each in planned.models if each.name == model)
        found.append((served, Setting(unit, spec, resources)))
    found.sort(key=lambda each: -each[0])
    return tuple(setting for _, setting in found)
