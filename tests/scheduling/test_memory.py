"""Admission, preemption and the prefix cache as the scheduler uses them."""

import numpy as np
import pytest

from muxcluster.core.events import Finished, Rejected
from muxcluster.core.job import Phase, Side, WorkerSpec
from muxcluster.core.request import ServiceClass
from tests.scheduling.rig import SOME_LANES, TWO_WORKERS, Rig, model_spec, request, unit_spec

ONE_WORKER = (WorkerSpec(0, (1.0,)),)


def rig_of(num_columns: int, lane: str = "adbs", **more) -> Rig:
    """One model; 8 tokens and 4 blocks a column."""
    workers = more.pop("workers", ONE_WORKER)
    policy = {"lane": lane, "workers": workers, "token_budget": 256}
    return Rig(unit_spec([model_spec("a", **more)], num_blocks=4 * num_columns, **policy))


@pytest.mark.parametrize("workers", [ONE_WORKER, TWO_WORKERS])
@pytest.mark.parametrize("lane", SOME_LANES)
def test_oldest_is_never_preempted_and_all_end(lane: str, workers) -> None:
    rig = rig_of(8, lane, workers=workers)
    requests = [request(str(i), num_prompt=8, num_output=40) for i in range(5)]
    rig.add(*requests)
    rig.run()
    rig.check_outputs(requests)
    assert rig.preempted, "the pool was too large for this test"
    assert "0" not in rig.preempted
    assert list(rig.ends)[0] == "0"
    rig.check_empty()


@pytest.mark.parametrize("lane", ["temporal", "round-robin", "mixed"])
def test_without_quotas_models_preempt_each_other_and_all_end(lane: str) -> None:
    models = [model_spec("a"), model_spec("b"), model_spec("c")]
    rig = Rig(unit_spec(models, lane=lane, num_blocks=4 * 9))
    requests = [request(f"{i}", "abc"[i % 3], num_prompt=8, num_output=50) for i in range(9)]
    rig.add(*requests)
    rig.run()
    rig.check_outputs(requests)
    assert rig.preempted
    assert "0" not in rig.preempted
    rig.check_empty()


def test_batch_class_is_preempted_first_then_low_priority() -> None:
    rig = rig_of(13)
    rig.add(
        request("batch", num_prompt=8, num_output=40, service_class=ServiceClass.BATCH),
        request("low", num_prompt=8, num_output=40, priority=5),
        request("normal", num_prompt=8, num_output=40),
    )
    rig.run()
    assert rig.preempted[0] == "batch"
    assert "normal" not in rig.preempted
    assert {job.side for j in rig.jobs for job in j.admissions} == {Side.LEFT, Side.RIGHT}
    assert list(rig.ends) == ["normal", "low", "batch"]


def test_recompute_starts_with_the_prompt_and_all_output() -> None:
    rig = rig_of(8, prefix_caching=False)
    requests = [request(str(i), num_prompt=8, num_output=40) for i in range(2)]
    rig.add(*requests)
    rig.run()
    admissions = [a for job in rig.jobs for a in job.admissions if a.request_id == "1"]
    assert len(admissions) == 2
    again = admissions[1]
    assert again.num_prompt_tokens == 8
    assert again.tokens.tolist()[:8] == requests[1].prompt_tokens.tolist()
    output = again.tokens.tolist()[8:]
    assert output == rig.tokens["1"][: len(output)] != []
    end = rig.ends["1"]
    assert isinstance(end, Finished)
    assert end.num_preemptions == 1
    assert rig.scheduler.stats(0.0, "u").models[0].num_preemptions == 1


def test_admission_leaves_room_for_those_who_run() -> None:
    """Else each admission would be preempted at the next step and start again."""
    rig = rig_of(8)
    rig.add(request("old", num_prompt=24, num_output=33))
    rig.step()
    rig.add(request("new", num_prompt=34, num_output=2))
    rig.run()
    assert rig.preempted == []
    assert list(rig.ends) == ["old", "new"]


def test_requests_that_can_never_fit_are_rejected() -> None:
    rig = rig_of(4)
    rig.add(request("fits", num_prompt=20, num_output=13))
    rig.add(request("one too many", num_prompt=20, num_output=14))
    rig.add(request("beyond the context", num_prompt=65))
    rig.add(request("empty", num_prompt=0))
    rig.add(request("unknown", "z"))
    codes = {name: end.code for name, end in rig.ends.items() if isinstance(end, Rejected)}
    assert codes == {
        "one too many": "context_length_exceeded",
        "beyond the context": "context_length_exceeded",
        "empty": "invalid_value",
        "unknown": "model_not_found",
    }
    rig.run()
    assert len(rig.tokens["fits"]) == 13


def test_the_context_ends_output() -> None:
    rig = rig_of(20)
    requests = [request("a", num_prompt=60, num_output=50), request("b", num_prompt=64)]
    rig.add(*requests)
    rig.run()
    rig.check_outputs(requests)
    assert (len(rig.tokens["a"]), len(rig.tokens["b"])) == (4, 1)


def repeated(rig: Rig, *, num_prompt: int = 32, **more) -> Finished:
    """The same prompt after it has ended once."""
    prompt = np.arange(num_prompt, dtype=np.int32)
    rig.add(request("first", prompt_tokens=prompt, num_output=2))
    rig.run()
    rig.add(request("again", prompt_tokens=prompt, num_output=2, **more))
    rig.run()
    end = rig.ends["again"]
    assert isinstance(end, Finished)
    return end


def test_a_known_prefix_is_not_computed_again() -> None:
    rig = rig_of(20)
    assert repeated(rig).num_cached_tokens == 24, "one token must be left to compute"
    prefills = [job for job in rig.jobs if job.phase is Phase.PREFILL]
    assert [job.rows.counts.tolist() for job in prefills] == [[32], [8]]
    assert prefills[1].rows.starts.tolist() == [24]
    assert len(prefills[1].tables) == 4, "the whole table travels"
    stats = rig.scheduler.stats(0.0, "u").models[0]
    assert (stats.prefix_queries, stats.prefix_hits) == (64, 24)


@pytest.mark.parametrize(
    "more",
    [{"cacheable": False}, {"cache_salt": "x"}],
)
def test_some_requests_must_not_share(more) -> None:
    assert repeated(rig_of(20), **more).num_cached_tokens == 0


def test_without_prefix_caching_nothing_is_kept() -> None:
    rig = rig_of(20, prefix_caching=False)
    assert repeated(rig).num_cached_tokens == 0
    stats = rig.scheduler.stats(0.0, "u")
    assert stats.free_blocks == stats.num_blocks
    assert stats.models[0].prefix_queries == 0


def test_output_is_cached_too() -> None:
    """A next turn of a chat begins with the last turn's answer."""
    rig = rig_of(20)
    rig.add(request("turn 1", num_prompt=8, num_output=20))
    rig.run()
    first = rig.jobs[0].admissions[0].tokens.tolist()
    rig.add(request("turn 2", prompt_tokens=[*first, *rig.tokens["turn 1"], 1, 2]))
    rig.run()
    end = rig.ends["turn 2"]
    assert isinstance(end, Finished)
    assert end.num_cached_tokens == 24


def test_zero_stride_prompts_are_never_read_without_prefix_caching() -> None:
    rig = rig_of(20, prefix_caching=False)
    prompt = np.lib.stride_tricks.as_strided(np.zeros(1, dtype=np.int32), (40,), (0,))
    rig.add(request("simulated", prompt_tokens=prompt))
    rig.run()
    assert len(rig.tokens["simulated"]) == 5
