"""What each baseline lane does, and why it exists."""

from itertools import pairwise

import pytest

from muxcluster.core.job import Phase, WorkerSpec
from tests.scheduling.rig import LANES, Rig, model_spec, request, unit_spec

ONE_WORKER = (WorkerSpec(0, (1.0,)),)


def rig_of(lane: str, **more) -> Rig:
    models = [model_spec("a", max_seqs=12), model_spec("b", max_seqs=12)]
    return Rig(unit_spec(models, lane=lane, num_blocks=800, **more))


def stream(rig: Rig) -> list[tuple[str, Phase]]:
    return [(job.model, job.phase) for job in rig.jobs]


@pytest.mark.parametrize("lane", ["temporal", "mixed"])
def test_one_job_at_a_time_on_the_whole_gpu(lane: str) -> None:
    rig = rig_of(lane)
    rig.add(*(request(f"{m}{i}", m) for m in "ab" for i in range(3)))
    while rig.num_open:
        rig.launch()
        assert len(rig.running) == 1
        assert rig.running[0][1].share == 1.0
        rig.finish()


def test_temporal_prefills_in_order_of_arrival_over_models() -> None:
    rig = rig_of("temporal")
    for i, model in enumerate("abba"):
        rig.add(request(f"{i}", model, num_prompt=32, num_output=3))
    rig.run()
    prefills = [model for model, phase in stream(rig) if phase is Phase.PREFILL]
    assert prefills == list("abba")


def test_temporal_lets_a_new_request_join_running_ones() -> None:
    """Continuous batching: nobody waits for a batch to end."""
    rig = rig_of("temporal")
    rig.add(request("long", "a", num_output=40))
    for _ in range(5):
        rig.step()
    rig.add(request("short", "a", num_output=3))
    rig.run()
    assert rig.end_s["short"] < rig.end_s["long"]
    assert max(len(job.rows) for job in rig.jobs if job.phase is Phase.DECODE) == 2


def test_temporal_decodes_take_turns() -> None:
    rig = rig_of("temporal")
    rig.add(request("x", "a"), request("y", "b"))
    rig.run()
    decodes = [model for model, phase in stream(rig) if phase is Phase.DECODE]
    assert decodes == ["a", "b"] * 4


def test_round_robin_rotates_strictly_whatever_is_urgent() -> None:
    rig = rig_of("round-robin")
    rig.add(*(request(f"a{i}", "a", num_prompt=32, num_output=2) for i in range(6)))
    rig.add(*(request(f"b{i}", "b", num_prompt=32, num_output=2, priority=-9) for i in range(6)))
    rig.run()
    prefills = [model for model, phase in stream(rig) if phase is Phase.PREFILL]
    assert prefills == ["a", "b"] * 6


def test_round_robin_runs_both_phases_side_by_side() -> None:
    rig = rig_of("round-robin")
    rig.add(request("x", "a", num_output=20))
    rig.step()
    rig.add(request("y", "b"))
    shares = {job.phase: job.share for job in rig.launch()}
    assert shares == {Phase.PREFILL: 0.5, Phase.DECODE: 0.5}


def test_round_robin_alternates_phases_on_one_worker() -> None:
    rig = rig_of("round-robin", workers=ONE_WORKER)
    rig.add(*(request(f"{i}", "a", num_prompt=32, num_output=9) for i in range(3)))
    for _ in range(6):
        rig.step()
    assert [phase for _, phase in stream(rig)] == [Phase.PREFILL, Phase.DECODE] * 3


def test_only_adbs_has_quotas() -> None:
    for lane in LANES:
        stats = rig_of(lane).scheduler.stats(0.0, "unit")
        total = sum(model.quota_blocks for model in stats.models)
        assert total == (800 if lane == "adbs" else 2 * 800)


def test_mixed_puts_chunks_and_decodes_in_one_forward() -> None:
    rig = rig_of("mixed", token_budget=16)
    rig.add(request("decodes", "a", num_output=40))
    rig.step()
    rig.add(request("long", "a", num_prompt=60, num_output=2))
    job = rig.launch()[0]
    assert job.phase is Phase.MIXED
    assert job.rows.counts.tolist() == [1, 15]
    assert job.rows.samples.tolist() == [True, False]


def longest_gap(lane: str) -> float:
    """Longest time between tokens of a decoding request while a long prompt arrives."""
    rig = rig_of(lane, workers=ONE_WORKER, token_budget=64 if lane == "temporal" else 8)
    rig.add(request("decodes", "a", num_output=50))
    times: list[float] = []
    while "decodes" not in rig.ends:
        before = len(rig.tokens["decodes"])
        if before >= 5 and rig.num_accepted == 1:
            rig.add(request("long", "a", 60, 1))
        rig.step()
        times += [rig.now] * (len(rig.tokens["decodes"]) - before)
    return max(later - earlier for earlier, later in pairwise(times))


def test_mixed_keeps_decoding_while_a_long_prompt_is_prefilled() -> None:
    assert longest_gap("mixed") < 0.5 * longest_gap("temporal")
