"""A batch job beside interactive requests: fed as memory comes free, as a prediction runs it."""

from dataclasses import replace

import numpy as np
import pytest

from bench.traces.batchmix import Kind, mixed_job
from muxcluster.core.request import ServiceClass
from muxcluster.offline.choice import Unplanned, feeder_of
from muxcluster.offline.prefix.prompts import flat_prompts
from muxcluster.placement.cost.resources import resource_model
from muxcluster.placement.hardware import GPUS
from muxcluster.sim.batch.simulate import SimPredictor
from muxcluster.sim.core.simulate import Fleet, simulate
from muxcluster.sim.core.unit import SimUnit
from muxcluster.sim.demand.feeding import UnitJob
from muxcluster.workload.arrival import Arrival
from tests.sim.cases import SHAPE, sim_unit

BLOCK, COLUMNS = 16, 250
RESOURCES = resource_model(SHAPE, GPUS["A100-80GB"])
MADE = mixed_job(
    [Kind(0.5, 7, 300, 100, 20), Kind(0.5, 1, 0, 100, 120)], 150, np.random.default_rng(0)
)
SIZE_BYTES = COLUMNS * BLOCK * RESOURCES.kv_bytes
JOB = Unplanned(
    flat_prompts(MADE.ids, MADE.offsets), MADE.output_tokens, RESOURCES, SIZE_BYTES, BLOCK
)
WHOLE = JOB.with_tree()


def _unit(order: str, expected: float | None) -> SimUnit:
    unit = sim_unit(models=("a",), num_columns=COLUMNS, lane="adbs", max_seqs=128)
    return replace(unit, job=UnitJob("a", WHOLE, JOB, order, expected))


@pytest.mark.parametrize("expected", [None, 70.0])
@pytest.mark.parametrize("order", ["fcfs", "batchllm", "blend"])
def test_alone_it_takes_what_is_predicted(order: str, expected: float | None) -> None:
    unit = _unit(order, expected)
    feeder = feeder_of(WHOLE, order, expected)
    told = SimPredictor(unit, "a", RESOURCES).predict(JOB.prompts, JOB.output_tokens, feeder)
    found = simulate([unit], [])
    assert found.end_s == told.makespan_s
    (stats,) = found.stats
    assert sum(model.prefix_hits for model in stats.models) == told.saved_tokens
    assert len(found.records) == 150
    assert (found.records.rows["arrival_s"] == 0).all()


def test_it_is_never_submitted_as_a_whole_and_every_request_ends_once() -> None:
    unit = _unit("batchllm", 70.0)
    fleet = Fleet([unit], exact=False)
    fleet.begin()
    coming = [Arrival(0.05 * i, f"now/{i}", "a", 80, 10) for i in range(40)]
    most_open = 0
    for arrival in coming:
        fleet.submit(arrival)
        most_open = max(most_open, len(fleet.table))
    fleet.stop(float("inf"))
    records = fleet.table.records()
    assert records.is_finished.all()
    assert len(records.of_class(ServiceClass.BATCH)) == 150
    assert len(records.of_class(ServiceClass.INTERACTIVE)) == 40
    assert most_open < 100


def test_what_is_told_to_the_plan_changes_the_order() -> None:
    ends = {expected: simulate([_unit("blend", expected)], []).end_s for expected in (None, 70.0)}
    assert ends[None] != ends[70.0]
