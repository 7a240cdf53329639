"""Whom interactive growth preempts gives up blocks by that: else its work is lost in vain.

Where host memory lasts nobody is; the fewer host blocks there are, the more of them are.
"""

import pytest

from muxcluster.core.job import WorkerSpec
from muxcluster.core.request import ServiceClass
from muxcluster.scheduling.memory import admission
from tests.scheduling.rig import Rig, model_spec, request, unit_spec

BATCH = ServiceClass.BATCH
ONE_WORKER = (WorkerSpec(0, (1.0,)),)
TWO_WORKERS = (WorkerSpec(0, (0.5,)), WorkerSpec(1, (0.5,)))


def run_crowded(lane: str, num_blocks: int, num_host_blocks: int, workers=ONE_WORKER) -> Rig:
    """Interactive requests that outgrow pool or quota, after batch ones that filled the pool."""
    models = (model_spec("a", max_seqs=12), model_spec("b", max_seqs=12))
    rig = Rig(
        unit_spec(
            models,
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
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


@pytest.fixture
def losers(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, bool, bool]]:
    """Of each victim of interactive growth: by quota, is batch, has a block that is not lent."""
    seen: list[tuple[bool, bool, bool]] = []
    choose = admission.least_senior

    def watched(models, *, is_left=False, by_quota=False):
        model, row = choose(models, is_left=is_left, by_quota=by_quota)
        if is_left:
            lent_tokens = model.kv.num_lent[row] * model.block_tokens
            has_whole = model.kv.capacity[row] > lent_tokens
            seen.append((by_quota, bool(model.running.is_batch[row]), bool(has_whole)))
        return model, row

    monkeypatch.setattr(admission, "least_senior", watched)
    return seen


CROWDS = [("mixed", 64, ONE_WORKER), ("temporal", 64, ONE_WORKER), ("adbs", 104, TWO_WORKERS)]


@pytest.mark.parametrize(("lane", "num_blocks", "workers"), CROWDS)
def test_with_enough_host_memory_nobody_is_preempted(lane: str, num_blocks: int, workers) -> None:
    rig = run_crowded(lane, num_blocks, 400, workers)
    assert not rig.preempted
    models = rig.scheduler.stats(rig.now, "unit").models
    assert sum(model.num_recomputed_tokens for model in models) == 0


@pytest.mark.parametrize("num_host_blocks", [24, 48, 64])
@pytest.mark.parametrize("lane", ["mixed", "temporal"])
def test_a_sequence_that_lent_all_it_had_is_not_preempted(
    lane: str, num_host_blocks: int, losers: list
) -> None:
    rig = run_crowded(lane, 64, num_host_blocks)
    assert any(name.startswith("urgent") for name in rig.preempted), "host memory was enough"
    assert losers
    assert all(is_whole for *_, is_whole in losers)


@pytest.mark.parametrize("num_host_blocks", [8, 16, 24])
def test_the_quota_of_interactive_ones_costs_no_batch_sequence_its_work(
    num_host_blocks: int, losers: list
) -> None:
    rig = run_crowded("adbs", 104, num_host_blocks, TWO_WORKERS)
    assert any(name.startswith("urgent") for name in rig.preempted), "host memory was enough"
    by_quota = [is_batch for is_short, is_batch, _ in losers if is_short]
    assert by_quota
    assert not any(by_quota)
