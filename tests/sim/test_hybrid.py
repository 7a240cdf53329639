"""Hybrid packing in whole simulations: all end, targets hold, nothing is computed twice."""

from dataclasses import replace

import numpy as np
import pytest

from muxcluster.core.request import ServiceClass, Slo
from muxcluster.sim.core.simulate import SimResult, simulate
from muxcluster.sim.core.unit import SimUnit
from muxcluster.sim.demand.waves import Waves
from muxcluster.workload.lengths import Independent
from muxcluster.workload.marginals import LogNormal
from muxcluster.workload.metrics.records import CLASSES, Ending
from tests.sim.cases import arrivals, sim_unit

END_S = 15.0
LENGTHS = Independent(LogNormal(6.2, 0.4), LogNormal(3.5, 0.5))
TARGETS = Slo(ttft_s=0.25, tpot_s=0.1)
RATE = 8.0


def unit(packing: str, lane: str, models: tuple[str, ...] = ("a",)) -> SimUnit:
    """A pool that a wave fills several times, and host memory for as much again.

    Under adbs prefills take few SMs while decodes hold memory, and fill a smaller pool only.
    """
    plain = sim_unit(models=models, num_columns=600 if lane == "adbs" else 1000, lane=lane)
    specs = tuple(replace(model, slo=TARGETS) for model in plain.spec.models)
    spec = replace(
        plain.spec,
        models=specs,
        scheduler=replace(plain.spec.scheduler, packing=packing),
        num_host_blocks=plain.spec.num_blocks,
    )
    waves = tuple(Waves(name, 120, LENGTHS, END_S) for name in models)
    return replace(plain, spec=spec, waves=waves)


def run(packing: str, lane: str, *, exact: bool = False, models=("a",)) -> SimResult:
    asked = arrivals(int(RATE * END_S), RATE, models)
    return simulate([unit(packing, lane, models)], asked, exact=exact)


def interactive(result: SimResult) -> np.ndarray:
    rows = result.records.rows
    return rows[rows["service_class"] == CLASSES.index(ServiceClass.INTERACTIVE)]


@pytest.mark.parametrize("lane", ["temporal", "mixed", "adbs"])
def test_everybody_ends_and_nothing_is_computed_twice(lane: str) -> None:
    models = ("a", "b") if lane == "adbs" else ("a",)
    result = run("hybrid", lane, models=models)
    assert (result.records.rows["ending"] == Ending.FINISHED).all()
    stats = result.stats[0].models
    assert sum(model.num_lent_columns for model in stats) > 0
    assert sum(model.num_recomputed_tokens for model in stats) == 0


@pytest.mark.parametrize("lane", ["temporal", "mixed"])
def test_interactive_requests_keep_targets_that_priority_misses(lane: str) -> None:
    shares = {}
    for packing in ("hybrid", "priority"):
        rows = interactive(run(packing, lane))
        shares[packing] = float(
            (rows["first_token_s"] - rows["arrival_s"] <= TARGETS.ttft_s).mean()
        )
    assert shares["hybrid"] > 0.99
    assert shares["priority"] < 0.96


def test_steps_told_one_by_one_change_nothing() -> None:
    """Repetitions are off where rows are chosen anew for every job."""
    first, second = (run("hybrid", "mixed", exact=exact).records.rows for exact in (True, False))
    assert first.tobytes() == second.tobytes()
