"""Predictions while a whole simulated unit runs: real batches, neighbours that slow one another."""

import random

import pytest

from muxcluster.core.events import Finished, Rejected
from muxcluster.core.job import Phase
from muxcluster.placement.cost import Cost, Roofline, Tuning
from muxcluster.placement.hardware import GPUS
from muxcluster.scheduling.steptime.model import StepTimes
from muxcluster.scheduling.steptime.seed import CostSeed, SeedModel
from muxcluster.sim.core.driver import UnitDriver
from muxcluster.sim.demand.requests import request_of
from tests.sim.cases import SHAPE, arrivals, sim_unit

SLOWER = Tuning(compute=0.4, bandwidth=0.7, decode_layer_s=4e-4, kernels_s=2e-4)
NOISE = 0.05
"""Jobs take so much longer or shorter, at most, than the simulator says: 2.5 % on average."""


class Observer:
    """Tells `times` of every job that ends, as a unit would."""

    def __init__(self, times: StepTimes) -> None:
        self.num_beside: dict[int, int] = {}
        self._running = 0
        self._times = times
        self._rng = random.Random(0)

    def launched(self, driver, entries) -> None:
        self._running += len(entries)
        for entry in entries:
            self.num_beside[entry.job.job_id] = self._running - 1

    def ran(self, driver, entry) -> None:
        self._running -= 1
        seconds = (driver.now - entry.start_s) * self._rng.uniform(1 - NOISE, 1 + NOISE)
        self._times.observe(entry.job, seconds, self.num_beside[entry.job.job_id])

    def first_token(self, request_id: str, now: float) -> None:
        pass

    def end(self, event: Finished | Rejected, now: float) -> None:
        assert isinstance(event, Finished)


def run(times: StepTimes, lane: str) -> Observer:
    """The simulator's GPU is as the seed says."""
    observer = Observer(times)
    driver = UnitDriver(sim_unit(lane=lane), observer)
    for arrival in arrivals(120, rate=6.0):
        driver.advance(arrival.time_s)
        driver.submit(request_of(arrival), arrival.time_s)
    driver.advance(1e6)
    return observer


def seed(cost: Cost) -> CostSeed:
    return CostSeed({name: SeedModel(SHAPE, cost) for name in ("a", "b")}, max_len=2048)


@pytest.mark.parametrize("lane", ["adbs", "temporal", "mixed"])
@pytest.mark.parametrize("tuning", [Tuning(), SLOWER, None])
def test_decode_is_predicted_within_a_few_percent(lane, tuning) -> None:
    """Whether the seed is right, of slower hardware, or none; alone (2.5 % is noise) and beside."""
    times = StepTimes(None if tuning is None else seed(Roofline(GPUS["A100-80GB"], 2, tuning)))
    observer = run(times, lane)
    errors = times.errors()
    is_shared = max(observer.num_beside.values()) > 0
    assert is_shared == (lane == "adbs")
    for model in ("a", "b"):
        error = errors[model, Phase.DECODE]
        assert error.count > 500
        assert error.mean < (0.08 if is_shared else 0.04)
        assert abs(error.bias) < 0.02


def test_correction_is_what_brings_it() -> None:
    """Without it, lines of slower hardware are off by far more."""
    wrong = StepTimes(seed(Roofline(GPUS["A100-80GB"], 2, SLOWER)))
    right = StepTimes(seed(Roofline(GPUS["A100-80GB"], 2)))
    before = wrong.of("a", 1.0).decode_s(8, 8 * 300) / right.of("a", 1.0).decode_s(8, 8 * 300)
    run(wrong, "temporal")
    after = wrong.of("a", 1.0).decode_s(8, 8 * 300) / right.of("a", 1.0).decode_s(8, 8 * 300)
    assert before > 1.25
    assert after == pytest.approx(1.0, abs=0.05)
