"""Batch jobs of several models on one unit at the same time, on the virtual clock."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.events import Finished, Rejected
from muxcluster.core.request import Request
from muxcluster.offline.blend.resources import ResourceModel
from muxcluster.offline.feed.feeder import BatchFeeder, Room
from muxcluster.offline.joint import JointMemory
from muxcluster.offline.predictor import Prediction
from muxcluster.offline.prefix.prompts import Prompts
from muxcluster.scheduling.scheduler import UnitScheduler
from muxcluster.sim.batch.run import predicted
from muxcluster.sim.core.unit import SimUnit
from muxcluster.sim.demand.feeding import Ran, SimFeed, fitting

_SEPARATOR = "/"


@dataclass(frozen=True, slots=True, eq=False)
class ModelJob:
    """One model's job. output_tokens: int64 [n], what each request will get, whatever `feeder`,
    which is for these prompts, knows of it."""

    prompts: Prompts
    output_tokens: NDArray[np.int64]
    feeder: BatchFeeder


@dataclass(frozen=True, slots=True, eq=False)
class JointPrediction:
    """together: of all jobs as one. end_s: by model, when the last request of its job ended."""

    together: Prediction
    end_s: Mapping[str, float]


class JointPredictor:
    """As `SimPredictor`, with a job for each of several models of the unit."""

    def __init__(self, unit: SimUnit, resources: Mapping[str, ResourceModel]) -> None:
        """resources: by model of the unit, what use over time is counted by."""
        self._unit = unit
        self._resources = resources

    def predict(self, jobs: Mapping[str, ModelJob], *, is_joint: bool = True) -> JointPrediction:
        """All jobs start at once, and the unit runs nothing else.

        jobs: by model. is_joint: their memory is divided by a plan of them all; otherwise each
        takes what it finds. Raises ValueError as `UnitScheduler` does.
        """
        feed = _JointFeed(self._unit, jobs, is_joint=is_joint)
        together = predicted(self._unit, self._resources, feed)
        return JointPrediction(together, feed.end_s)


class _JointFeed:
    """A feed a model; request ids begin with the model's name."""

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
        feeders = {model: job.feeder for model, job in jobs.items()}
        self._memory = JointMemory(feeders) if is_joint else None

    def __call__(self, scheduler: UnitScheduler, now: float) -> list[Request]:
        """The requests to submit now."""
        if self._memory is None:
            rooms = {model: feed.room(scheduler, now) for model, feed in self._feeds.items()}
        else:
            space, size_bytes = scheduler.batch_memory.space(None), self._spec.block_bytes
            room = Room(
                now,
                space.num_blocks * size_bytes,
                space.other_blocks * size_bytes,
                self._spec.scheduler.token_budget,
            )
            rooms = self._memory.rooms(room)
        return [
            request
            for model, room in rooms.items()
            for request in self._feeds[model].requests(scheduler, room)
        ]

    def first_token(self, request_id: str) -> None:
        """A request that was fed got a token from a job that computes prompts."""
        self._feed(request_id).first_token(request_id)

    def end(self, event: Finished | Rejected, now: float) -> None:
        """A request that was fed has ended."""
        self._feed(event.request_id).end(event, now)

    @property
    def ran(self) -> Ran:
        """What has ended so far."""
        return sum((feed.ran for feed in self._feeds.values()), Ran())

    @property
    def end_s(self) -> dict[str, float]:
        """By model, when the last request ended."""
        return {model: feed.ran.end_s for model, feed in self._feeds.items()}

    def _feed(self, request_id: str) -> SimFeed:
        return self._feeds[request_id.rpartition(_SEPARATOR)[0]]
