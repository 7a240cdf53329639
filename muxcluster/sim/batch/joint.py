"""Batch jobs of several models on one unit at the same time, on the virtual clock."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.events import Finished, Rejected
from muxcluster.core.request import Request
from muxcluster.offline.feed.feeder import BatchFeeder, Room
from muxcluster.offline.joint import JointMemory
from muxcluster.offline.predictor import Prediction
from muxcluster.offline.prefix.prompts import Prompts
from muxcluster.placement.cost.resources import ResourceModel
from muxcluster.scheduling.scheduler import UnitScheduler
from muxcluster.sim.batch.run import predicted
from muxcluster.sim.core.unit import SimUnit
from muxcluster.sim.demand.feeding import Ran, SimFeed, fitting

_SEPARATOR = "/"


@dataclass(frozen=True, slots=True, eq=False)
class ModelJob:
    """One model's job."""

    prompts: Prompts
    output_tokens: NDArray[np.int64]  # int64 [n], true lengths; the feeder may not know them
    feeder: BatchFeeder  # for these prompts


@dataclass(frozen=True, slots=True, eq=False)
class JointPrediction:
    """Predicted result of several jobs at once."""

    together: Prediction  # of all jobs as one
    end_s: Mapping[str, float]  # end of each job's last request, by model


class JointPredictor:
    """`SimPredictor` for several models of a unit, each with a job."""

    def __init__(self, unit: SimUnit, resources: Mapping[str, ResourceModel]) -> None:
        """resources: by model of the unit, to count use over time."""
        self._unit = unit
        self._resources = resources

    def predict(self, jobs: Mapping[str, ModelJob], *, is_joint: bool = True) -> JointPrediction:
        """Predict all jobs started at once, with nothing else on the unit.

        jobs: by model. is_joint: a common plan divides the memory; otherwise each job takes what is
        free. Raises ValueError as `UnitScheduler` does.
        """
        feed = _JointFeed(self._unit, jobs, is_joint=is_joint)
        together = predicted(self._unit, self._resources, feed)
        return JointPrediction(together, feed.end_s)


class _JointFeed:
    """One feed per model; request ids begin with the model's name."""

    def __init__(self, unit: SimUnit, jobs: Mapping[str, ModelJob], *, is_joint: bool) -> None:
        self._spec = unit.spec
        self._feeds = {
            model: SimFeed(
                job.feeder,
                unit.spec,
                model,
                job.prompts,
                fitting(unit.spec, model, job.prompts, job.output_tokens),
                f"{model}{_SEPARATOR}",
            )
            for model, job in jobs.items()
        }
        self._feeders = {model: job.feeder for model, job in jobs.items()}
        self._memory = JointMemory() if is_joint else None

    def __call__(self, scheduler: UnitScheduler, now: float) -> list[Request]:
        if self._memory is None:
            rooms = {model: feed.room(scheduler, now) for model, feed in self._feeds.items()}
        else:
            space, size_bytes = scheduler.batch_memory.space(None), self._spec.mesh_block_bytes
            room = Room(
                now,
                space.num_blocks * size_bytes,
                space.other_blocks * size_bytes,
                self._spec.scheduler.token_budget,
            )
            rooms = self._memory.rooms(self._feeders, room)
        return [
            request
            for model, room in rooms.items()
            for request in self._feeds[model].requests(scheduler, room)
        ]

    def first_token(self, request_id: str) -> None:
        self._feed(request_id).first_token(request_id)

    def end(self, event: Finished | Rejected, now: float) -> None:
        self._feed(event.request_id).end(event, now)

    @property
    def ran(self) -> Ran:
        return sum((feed.ran for feed in self._feeds.values()), Ran())

    @property
    def end_s(self) -> dict[str, float]:
        return {model: feed.ran.end_s for model, feed in self._feeds.items()}

    def _feed(self, request_id: str) -> SimFeed:
        return self._feeds[request_id.rpartition(_SEPARATOR)[0]]
