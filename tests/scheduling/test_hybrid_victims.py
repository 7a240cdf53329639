"""Whom interactive growth preempts gives up blocks by that: else its work is lost in vain."""

import pytest

from muxcluster.core.job import WorkerSlot
from muxcluster.core.request import ServiceClass
from tests.scheduling.rig import Rig, model_spec, request, unit_spec

BATCH = ServiceClass.BATCH
ONE_WORKER = (WorkerSlot(0, (1.0,)),)
TWO_WORKERS = (WorkerSlot(0, (0.5,)), WorkerSlot(1, (0.5,)))


def run_crowded(lane: str, num_blocks: int, workers=ONE_WORKER) -> Rig:
    """Interactive requests that outgrow pool or quota, after batch ones that filled the pool."""
    models = (model_spec("a", max_seqs=12), model_spec("b", max_seqs=12))
    rig = Rig(
        unit_spec(
            models,
            num_blocks=num_blocks,
            num_host_blocks=400,
            workers=workers,
            lane=lane,
            packing="hybrid",
        )
    )
    for model in "ab":
        for i in range(3):
            name = f"batch {model}{i}"
            rig.add(request(name, model, num_prompt=17, num_output=24, service_class=BATCH))
    for _ in range(8):
        rig.step()
    for i in range(5):
        rig.add(request(f"urgent {i}", "a", num_prompt=16, num_output=40))
    rig.run()
    assert len(rig.ends) == 11
    assert copied(rig) > 0
    return rig


def copied(rig: Rig) -> int:
    return sum(int(each.restores[:, 2].sum()) for job in rig.jobs for each in job.copies)


@pytest.mark.parametrize("lane", ["mixed", "temporal"])
def test_a_sequence_that_lent_all_it_had_is_not_preempted(lane: str) -> None:
    rig = run_crowded(lane, 64)
    assert any(name.startswith("urgent") for name in rig.preempted), "the pool was large enough"
    assert not any(name.startswith("batch") for name in rig.preempted)


def test_the_quota_of_interactive_ones_costs_no_batch_sequence_its_work() -> None:
    rig = run_crowded("adbs", 104, TWO_WORKERS)
    assert any(name.startswith("urgent") for name in rig.preempted), "the quota was large enough"
    assert not any(name.startswith("batch") for name in rig.preempted)
