"""Simulation of the batch jobs that a feed hands out, on one unit, to the end."""

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from muxcluster.core.events import Finished, Rejected
from muxcluster.core.request import Request
from muxcluster.offline.predictor import Prediction, UseOverTime
from muxcluster.placement.cost.resources import ResourceModel
from muxcluster.scheduling.scheduler import UnitScheduler
from muxcluster.sim.batch.use import ResourceMeter
from muxcluster.sim.core.concurrency import Running
from muxcluster.sim.core.driver import UnitDriver
from muxcluster.sim.core.unit import SimUnit
from muxcluster.sim.demand.feeding import Ran
from muxcluster.workload.metrics.series import step_means

NUM_BINS = 100  # spans of the use over time


class BatchFeed(Protocol):
    """Hands out requests and gets their results."""

    def __call__(self, scheduler: UnitScheduler, now: float) -> Sequence[Request]: ...

    def first_token(self, request_id: str) -> None:
        """Note that a fed request got a token from a job that computes prompts."""
        ...

    def end(self, event: Finished | Rejected, now: float) -> None:
        """Note that a fed request has ended."""
        ...

    @property
    def ran(self) -> Ran:
        """Return the totals of what has ended so far."""
        ...


def predicted(unit: SimUnit, resources: Mapping[str, ResourceModel], feed: BatchFeed) -> Prediction:
    """Return the result of all that `feed` hands out; nothing else runs on the unit.

    resources: by model, to count use over time. Raises ValueError as `UnitScheduler`.
    """
    run = _Run(unit, resources, feed)
    run.driver.advance(math.inf)
    run.driver.settle()
    return run.prediction()


class _Run:
    """One simulation: the sink of its driver."""

    def __init__(
        self, unit: SimUnit, resources: Mapping[str, ResourceModel], feed: BatchFeed
    ) -> None:
        self.driver = UnitDriver(unit, self, exact=False, feed=feed)
        self._feed = feed
        self._held: list[tuple[float, float]] = []
        self._meter = ResourceMeter(resources)

    def first_token(self, request_id: str, now: float) -> None:
        self._feed.first_token(request_id)

    def end(self, event: Finished | Rejected, now: float) -> None:
        self._feed.end(event, now)

    def launched(self, driver: UnitDriver, entries: Sequence[Running]) -> None:
        self._note_held()

    def ran(self, driver: UnitDriver, entry: Running) -> None:
        self._note_held()
        self._meter.ran(entry, driver.now)

    def _note_held(self) -> None:
        driver = self.driver
        used = sum(driver.scheduler.used_blocks().values())
        self._held.append((driver.now, used / driver.unit.spec.num_blocks))

    def prediction(self) -> Prediction:
        now, unit_id = self.driver.now, self.driver.unit.spec.unit_id
        models = self.driver.scheduler.stats(now, unit_id).models
        ran = self._feed.ran
        return Prediction(
            makespan_s=now,
            prompt_tokens=ran.prompt_tokens,
            output_tokens=ran.output_tokens,
            saved_tokens=sum(model.prefix_hits for model in models),
            recomputed_tokens=sum(model.num_recomputed_tokens for model in models),
            num_refused=ran.num_refused,
            use=self._use(now),
        )

    def _use(self, now: float) -> UseOverTime:
        edges = np.linspace(0.0, now, NUM_BINS + 1) if now > 0 else np.array([0.0, 1.0])
        compute, memory = self._meter.means(edges)
        times, held = np.array(self._held, dtype=np.float64).reshape(-1, 2).T
        return UseOverTime(float(edges[1]), compute, memory, step_means(times, held, edges))
