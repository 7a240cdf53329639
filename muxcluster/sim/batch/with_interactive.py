"""A batch job fed to the units that serve its model, beside interactive requests."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from muxcluster.placement.plan import Plan
from muxcluster.placement.problem import Problem
from muxcluster.sim.batch.division import Part, divide_job
from muxcluster.sim.batch.load import BatchFile
from muxcluster.sim.batch.setting import settings_among
from muxcluster.sim.core.unit import SimUnit
from muxcluster.sim.demand.feeding import UnitJob


@dataclass(frozen=True, slots=True)
class JobBeside:
    """A job's file and how it runs."""

    file: BatchFile
    order: str  # of `offline.orders`
    are_known: bool = False  # the plan knows output lengths; else it learns them as the job runs

    def given_to(
        self, units: Sequence[SimUnit], plan: Plan, problem: Problem, seed: int
    ) -> list[SimUnit]:
        """Return `units` (those of the plan), each with its part of the job, if it has one.

        Raises ConfigError for a malformed file.
        """
        job = self.file.read(seed).job
        settings = settings_among(units, plan, problem, self.file.model)
        first = settings[0]
        job = replace(job, model=first.resources, size_bytes=first.size_bytes)
        parts = divide_job(job, job.with_tree(), settings)
        jobs = {part.setting.unit.spec.unit_id: self._of(part) for part in parts}
        return [replace(unit, job=jobs.get(unit.spec.unit_id)) for unit in units]

    def _of(self, part: Part) -> UnitJob:
        expected = None if self.are_known else float(part.job.output_tokens.mean())
        return UnitJob(part.setting.spec.name, part.planned, part.job, self.order, expected)
