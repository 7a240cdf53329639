"""Prediction of a batch job on one unit by simulation, with the engine's scheduler."""

import numpy as np
from numpy.typing import NDArray

from muxcluster.offline.feed.feeder import BatchFeeder
from muxcluster.offline.predictor import Prediction
from muxcluster.offline.prefix.prompts import Prompts
from muxcluster.placement.cost.resources import ResourceModel
from muxcluster.sim.batch.run import predicted
from muxcluster.sim.core.unit import SimUnit
from muxcluster.sim.demand.feeding import SimFeed, fitting


class SimPredictor:
    """`MakespanPredictor` by simulation: `UnitScheduler` with the requests as batch class.

    A feeder hands them out while the job runs, as in the engine. Nothing else runs on the unit.
    """

    def __init__(self, unit: SimUnit, model: str, resources: ResourceModel) -> None:
        """model: one of the unit's. resources: to count use over time."""
        self._unit = unit
        self._model = model
        self._resources = resources

    def predict(
        self, prompts: Prompts, output_tokens: NDArray[np.int64], feeder: BatchFeeder
    ) -> Prediction:
        """Predict a job, see `MakespanPredictor`. Raises ValueError as `UnitScheduler` does."""
        outputs = fitting(self._unit.spec, self._model, prompts, output_tokens)
        feed = SimFeed(feeder, self._unit.spec, self._model, prompts, outputs)
        return predicted(self._unit, {self._model: self._resources}, feed)
