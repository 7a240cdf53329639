"""The units on which a batch job runs: those that serve its model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from muxcluster.core.unitspec import ModelSpec
from muxcluster.placement.cost.resources import ResourceModel, resource_model
from muxcluster.placement.execution import executions, planned
from muxcluster.placement.hardware import Gpu
from muxcluster.placement.memory import DoesNotFit, kv_blocks
from muxcluster.placement.plan import Plan, PlannedUnit
from muxcluster.placement.problem import Problem
from muxcluster.placement.specs import with_execution
from muxcluster.sim.batch.load import BatchFile
from muxcluster.sim.core.unit import SimUnit


@dataclass(frozen=True, slots=True)
class Setting:
    """A unit that runs a job, and what the job's plan needs of it."""

    unit: SimUnit
    spec: ModelSpec
    resources: ResourceModel
    # The same mesh with the other ways in which a unit of one model can run its jobs on it
    others: tuple[SimUnit, ...] = ()

    def ways(self) -> "tuple[Setting, ...]":
        """Return this setting first, then one for each of `others`."""
        return (self, *(replace(self, unit=unit, others=()) for unit in self.others))

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
    for place, unit in zip(made.units, units, strict=True):
        if model not in unit.models:
            continue
        spec = next(each for each in unit.spec.models if each.name == model)
        shape, gpu = unit.models[model].shape, gpus[place.node]
        resources = resource_model(shape, gpu, unit.tp, spec.shape.itemsize)
        served = max(each.throughput for each in place.models if each.name == model)
        others = _other_ways(unit, place, gpu, asked)
        found.append((served, Setting(unit, spec, resources, others)))
    found.sort(key=lambda each: -each[0])
    return tuple(setting for _, setting in found)


def _other_ways(unit: SimUnit, place: PlannedUnit, gpu: Gpu, asked: Problem) -> tuple[SimUnit, ...]:
    """Return the unit in the ways of running jobs that the plan did not choose.

    Each has the memory that its contexts leave. None of several models, whose quotas are planned
    for one way.
    """
    if len(unit.models) > 1:
        return ()
    (name,) = unit.models
    (demand,) = (each for each in asked.demands if each.name == name)
    ways = executions(gpu, place.tp, 1, asked.policy)
    chosen = place.execution or planned(ways[0])
    found = []
    for way in ways:
        if planned(way) == chosen:
            continue
        try:
            blocks = kv_blocks(gpu, place.tp, (demand,), asked.limits, way)
        except DoesNotFit:
            continue
        spec = with_execution(unit.spec, way, asked)
        found.append(replace(unit, spec=replace(spec, num_blocks=blocks // place.tp)))
    return tuple(found)
