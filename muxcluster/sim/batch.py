"""A batch job on one unit on the virtual clock: the engine's scheduler runs what a plan feeds."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.events import Finished, Rejected
from muxcluster.core.metrics_series import step_means
from muxcluster.offline.blend.resources import ResourceModel
from muxcluster.offline.feeding import BatchFeeder
from muxcluster.offline.predictor import Prediction, UseOverTime
from muxcluster.offline.prompts import Prompts
from muxcluster.sim.batch_use import ResourceMeter
from muxcluster.sim.concurrency import Running
from muxcluster.sim.driver import UnitDriver
from muxcluster.sim.feeding import SimFeed
from muxcluster.sim.unit import SimUnit

NUM_BINS = 100
"""Spans that the use over time is told for."""


class SimPredictor:
    """`MakespanPredictor` by simulation: `UnitScheduler` with the requests as batch class.

    A feeder hands them out while the job runs, as in the engine. Nothing else runs on the unit.
    """

    def __init__(self, unit: SimUnit, model: str, resources: ResourceModel) -> None:
        """model: one of the unit's. resources: what use over time is counted by."""
        self._unit = unit
        self._model = model
        self._resources = resources

    def predict(
        self, prompts: Prompts, output_tokens: NDArray[np.int64], feeder: BatchFeeder
    ) -> Prediction:
        """As the protocol says. Raises ValueError as `UnitScheduler` does."""
        outputs = self._fitting(prompts, output_tokens)
        feed = SimFeed(feeder, self._unit.spec, self._model, prompts, outputs)
        run = _Run(self._unit, self._resources, feed)
        run.driver.advance(math.inf)
        run.driver.settle()
        return run.prediction(prompts, outputs)

    def _fitting(self, prompts: Prompts, output_tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """As many output tokens as the context has room for, at least one."""
        spec = next(each for each in self._unit.spec.models if each.name == self._model)
        return np.minimum(output_tokens, np.maximum(spec.max_model_len - prompts.lengths, 1))


class _Run:
    """One simulation: the sink of its driver."""

    def __init__(self, unit: SimUnit, resources: ResourceModel, feed: SimFeed) -> None:
        self.driver = UnitDriver(unit, self, exact=False, feed=feed)
        self._feed = feed
        self._held: list[tuple[float, float]] = []
        self._meter = ResourceMeter(resources)
        self._finished: list[int] = []
        self._num_refused = 0

    def first_token(self, request_id: str, now: float) -> None:
        """A prompt is computed."""
        self._feed.first_token(request_id)

    def end(self, event: Finished | Rejected, now: float) -> None:
        """A request has ended."""
        self._feed.end(event)
        if isinstance(event, Finished):
            self._finished.append(int(event.request_id))
        else:
            self._num_refused += 1

    def launched(self, driver: UnitDriver, entries: Sequence[Running]) -> None:
        """Jobs started."""
        self._note_held()

    def ran(self, driver: UnitDriver, entry: Running) -> None:
        """A job ended."""
        self._note_held()
        self._meter.ran(entry, driver.now)

    def _note_held(self) -> None:
        driver = self.driver
        used = sum(driver.scheduler.used_blocks().values())
        self._held.append((driver.now, used / driver.unit.spec.num_blocks))

    def prediction(self, prompts: Prompts, output_tokens: NDArray[np.int64]) -> Prediction:
        """What came of it; the run has ended."""
        now, unit_id = self.driver.now, self.driver.unit.spec.unit_id
        models = self.driver.scheduler.stats(now, unit_id).models
        return Prediction(
            makespan_s=now,
            prompt_tokens=int(prompts.lengths[self._finished].sum()),
            output_tokens=int(output_tokens[self._finished].sum()),
            saved_tokens=sum(model.prefix_hits for model in models),
            recomputed_tokens=sum(model.num_recomputed_tokens for model in models),
            num_refused=self._num_refused,
            use=self._use(now),
        )

    def _use(self, now: float) -> UseOverTime:
        edges = np.linspace(0.0, now, NUM_BINS + 1) if now > 0 else np.array([0.0, 1.0])
        compute, memory = self._meter.means(edges)
        times, held = np.array(self._held, dtype=np.float64).reshape(-1, 2).T
        return UseOverTime(float(edges[1]), compute, memory, step_means(times, held, edges))
