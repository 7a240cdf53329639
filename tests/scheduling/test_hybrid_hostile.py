"""Hybrid packing under requests that nobody should send, and clients that leave when they lend."""

import random

import numpy as np
import pytest

from muxcluster.core.job import WorkerSpec
from muxcluster.core.request import ServiceClass, Slo
from tests.scheduling.rig import (
    SOME_LANES,
    Rig,
    expected_output,
    model_spec,
    request,
    unit_spec,
)

BATCH = ServiceClass.BATCH
ONE_WORKER = (WorkerSpec(0, (1.0,)),)
TWO_WORKERS = (WorkerSpec(0, (0.5,)), WorkerSpec(1, (0.5,)))
HUGE = 1.7e308


def rig_of(*, lane: str = "mixed", num_blocks: int = 72, max_seqs: int = 16, **more) -> Rig:
    more.setdefault("num_host_blocks", 400)
    workers = ONE_WORKER if lane in ("mixed", "temporal") else TWO_WORKERS
    models = (model_spec("a", max_seqs=max_seqs), model_spec("b", max_seqs=max_seqs))
    return Rig(
        unit_spec(
            models, num_blocks=num_blocks, workers=workers, lane=lane, packing="hybrid", **more
        )
    )


def batch_of(count: int, model: str = "a", **more):
    more = {"num_prompt": 20, "num_output": 20, "service_class": BATCH, **more}
    return [request(f"batch {model}{i}", model, **more) for i in range(count)]


def urgent_of(count: int, model: str = "a", **more):
    more = {"num_prompt": 22, "num_output": 8, **more}
    return [request(f"urgent {model}{i}", model, **more) for i in range(count)]


def lent(rig: Rig) -> list[str]:
    """Requests that gave blocks away and have not got them back."""
    found = []
    for model in rig.scheduler._models.values():
        found += [str(model.running.request_ids[row]) for row in model.running.idle_lent().tolist()]
    return found


def free(rig: Rig) -> int:
    stats = rig.scheduler.stats(rig.now, "unit")
    return stats.free_blocks + sum(model.cached_blocks for model in stats.models)


def crowded(lane: str, **more) -> Rig:
    """Batch requests have lent to interactive ones, and nothing has been given back yet."""
    rig = rig_of(lane=lane, **more)
    rig.add(*batch_of(4, "a"), *batch_of(4, "b"))
    for _ in range(10):
        rig.step()
    rig.add(*urgent_of(4, "a"), *urgent_of(4, "b"))
    for _ in range(200):
        if lent(rig):
            return rig
        rig.step()
    raise AssertionError("nobody lends")


@pytest.mark.parametrize("lane", SOME_LANES)
@pytest.mark.parametrize("kind", ["batch", "urgent"])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
)
def test_clients_that_leave_while_blocks_are_lent(lane: str, kind: str, seed: int) -> None:
    """The others get what they should, and all blocks come back."""
    rig = crowded(lane)
    rng = random.Random(seed)
    for _ in range(6):
        names = lent(rig) if kind == "batch" else list(rig.add_s)
        names = [name for name in names if name.startswith(kind) and name not in rig.ends]
        if names:
            rig.abort(rng.choice(names))
            rig.check()
        for _ in range(rng.randrange(3)):
            if rig.num_open:
                rig.step()
    rig.run()
    assert free(rig) == 72
    aborted = [name for name, end in rig.ends.items() if end.reason == "abort"]
    assert aborted
    for each in [*batch_of(4, "a"), *batch_of(4, "b"), *urgent_of(4, "a"), *urgent_of(4, "b")]:
        name = each.request_id
        whole = expected_output(each)
        got = rig.tokens[name]
        assert got == (whole[: len(got)] if name in aborted else whole)


@pytest.mark.parametrize("lane", SOME_LANES)
def test_targets_of_every_size_and_none(lane: str) -> None:
    targets = [None, Slo(HUGE, HUGE), Slo(5e-324, 5e-324), Slo(HUGE, 5e-324), Slo(1e-9, HUGE)]
    rig = rig_of(lane=lane)
    rig.add(*batch_of(3, slo=Slo(1e-9, 1e-9)), *batch_of(2, "b", slo=Slo(HUGE, HUGE)))
    asked = [
        request(f"urgent {i}", "ab"[i % 2], num_prompt=9 + i, slo=targets[i % len(targets)])
        for i in range(20)
    ]
    for i in range(0, 20, 2):
        rig.add(*asked[i : i + 2])
        rig.step()
    rig.run()
    assert len(rig.ends) == 25
    for each in asked:
        assert rig.tokens[each.request_id] == expected_output(each)


@pytest.mark.parametrize("lane", SOME_LANES)
def test_priorities_at_the_ends_of_their_range(lane: str) -> None:
    rig = rig_of(lane=lane, max_seqs=2)
    priorities = [2**63 - 1, -(2**63), 0, 2**31, -(2**31)]
    for i in range(20):
        service = BATCH if i % 3 == 0 else ServiceClass.INTERACTIVE
        rig.add(request(f"r{i}", priority=priorities[i % 5], service_class=service))
    rig.run()
    assert len(rig.ends) == 20


@pytest.mark.parametrize("lane", SOME_LANES)
def test_without_host_memory_nobody_lends_and_everybody_ends(lane: str) -> None:
    rig = rig_of(lane=lane, num_host_blocks=0)
    batch, urgent = batch_of(6), urgent_of(6)
    rig.add(*batch)
    for _ in range(8):
        rig.step()
    rig.add(*urgent)
    rig.run()
    assert not any(job.copies for job in rig.jobs)
    for each in batch + urgent:
        assert rig.tokens[each.request_id] == expected_output(each)


@pytest.mark.parametrize("lane", SOME_LANES)
def test_with_a_single_host_block_too(lane: str) -> None:
    rig = rig_of(lane=lane, num_host_blocks=1)
    batch, urgent = batch_of(6), urgent_of(6)
    rig.add(*batch)
    for _ in range(8):
        rig.step()
    rig.add(*urgent)
    rig.run()
    for each in batch + urgent:
        assert rig.tokens[each.request_id] == expected_output(each)


@pytest.mark.parametrize("max_seqs", [2, 4, 7, 8, 16])
def test_batch_requests_in_all_rows_do_not_keep_an_interactive_one_out(max_seqs: int) -> None:
    """It starts long before the first of them ends."""
    rig = rig_of(num_blocks=800, max_seqs=max_seqs)
    rig.add(*batch_of(2 * max_seqs, num_prompt=8, num_output=50))
    for _ in range(20):
        rig.step()
    running = [name for name in rig.tokens if name not in rig.ends]
    assert running
    rig.add(request("urgent", num_prompt=8, num_output=2, slo=Slo(0.2, 0.1)))
    asked_s = rig.now
    while "urgent" not in rig.first_token_s:
        rig.step()
    assert rig.first_token_s["urgent"] - asked_s < 0.3
    rig.run()
    assert len(rig.ends) == 2 * max_seqs + 1


def test_a_single_row_serves_both_classes() -> None:
    rig = rig_of(max_seqs=1)
    rig.add(*batch_of(2), *urgent_of(2), *batch_of(2, "b"))
    rig.run()
    assert len(rig.ends) == 6


def test_a_flood_of_interactive_requests_finds_rows_among_batch_ones() -> None:
    """More of them than the rows that are kept free for them."""
    rig = rig_of(num_blocks=800, max_seqs=16)
    rig.add(*batch_of(30, num_prompt=8, num_output=50))
    for _ in range(20):
        rig.step()
    urgent = [request(f"u{i}", num_prompt=8, num_output=6, slo=Slo(0.3, 0.1)) for i in range(8)]
    rig.add(*urgent)
    asked_s = rig.now
    while not all(each.request_id in rig.first_token_s for each in urgent):
        rig.step()
    waits = [rig.first_token_s[each.request_id] - asked_s for each in urgent]
    assert np.max(waits) < 1.0, "they waited for batch requests to end"
    rig.run()


def test_interactive_requests_that_wait_for_rows_do_not_stop_those_who_hold_them() -> None:
    """Batch sequences in these rows go on, end, and leave them to the interactive requests."""
    rig = rig_of(num_blocks=800, max_seqs=16)
    batch = batch_of(14, num_prompt=8, num_output=50)
    rig.add(*batch)
    for _ in range(20):
        rig.step()
    urgent = [request(f"u{i}", num_prompt=8, num_output=50, slo=Slo(0.3, 0.1)) for i in range(6)]
    rig.add(*urgent)
    while not all(each.request_id in rig.first_token_s for each in urgent):
        rig.step()
    starts = [rig.first_token_s[each.request_id] for each in urgent]
    ends = [rig.end_s.get(each.request_id, np.inf) for each in batch]
    assert min(ends) < max(starts), "batch sequences stood still in the rows"
    rig.run()
