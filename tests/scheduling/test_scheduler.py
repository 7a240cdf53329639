"""The facade: ends, aborts, failures, restarts, statistics."""

from dataclasses import replace

import numpy as np
import pytest

from muxcluster.core.events import Finished, FinishReason
from muxcluster.core.job import JobResult, Phase, TokenLogprobs, WorkerSpec
from muxcluster.core.unitspec import SchedulerSpec
from muxcluster.scheduling.scheduler import UnitScheduler
from tests.scheduling.rig import LANES, Rig, expected_output, model_spec, request, unit_spec


def reason(rig: Rig, name: str) -> FinishReason:
    end = rig.ends[name]
    assert isinstance(end, Finished)
    return end.reason


@pytest.mark.parametrize("num_blocks", [120, 160, 900])
def test_output_depends_on_nothing_but_the_request(num_blocks: int) -> None:
    requests = [
        request(str(i), "abc"[i % 3], 1 + i % 25, 30, ignore_eos=False, stop_token_ids=(i,))
        for i in range(20)
    ]
    streams = []
    for lane in LANES:
        rig = Rig(unit_spec(lane=lane, num_blocks=num_blocks))
        rig.add(*requests)
        rig.run()
        rig.check_outputs(requests)
        streams.append(dict(rig.tokens))
    assert all(stream == streams[0] for stream in streams)


def test_max_steps_changes_nothing_but_the_number_of_jobs() -> None:
    requests = [request(str(i), "a", 5, 20, ignore_eos=False) for i in range(5)]
    num_jobs = []
    for max_steps in (1, 8):
        rig = Rig(unit_spec(), max_steps=max_steps)
        rig.add(*requests)
        rig.run()
        rig.check_outputs(requests)
        num_jobs.append(len(rig.jobs))
    assert num_jobs[1] < 0.6 * num_jobs[0]


def test_the_most_senior_decode_where_rows_are_limited() -> None:
    rig = Rig(unit_spec(max_decode_rows=1))
    rig.add(request("low", num_output=20, priority=1))
    rig.step()
    rig.add(request("high", priority=0))
    rig.run()
    assert list(rig.ends) == ["high", "low"]


def test_abort_while_waiting_ends_at_once() -> None:
    rig = Rig(unit_spec())
    rig.add(request("r"))
    rig.abort("r")
    assert reason(rig, "r") is FinishReason.ABORT
    rig.abort("r")
    rig.abort("unknown")
    assert rig.launch() == []


def test_abort_in_a_running_job_ends_with_it_and_drops_its_tokens() -> None:
    rig = Rig(unit_spec())
    rig.add(request("r"), request("s"))
    rig.step()
    rig.launch()
    rig.abort("r")
    assert "r" not in rig.ends
    before = len(rig.tokens["r"])
    rig.finish()
    assert reason(rig, "r") is FinishReason.ABORT
    assert len(rig.tokens["r"]) == before
    rig.run()
    assert reason(rig, "s") is FinishReason.LENGTH
    rig.check_empty()


def test_abort_between_jobs_frees_memory_at_once() -> None:
    rig = Rig(unit_spec())
    rig.add(request("r"))
    rig.step()
    rig.abort("r")
    assert reason(rig, "r") is FinishReason.ABORT
    rig.check_empty()


def test_abort_in_a_failing_job_is_an_abort() -> None:
    rig = Rig(unit_spec())
    rig.add(request("r"))
    rig.launch()
    rig.abort("r")
    rig.fail()
    assert reason(rig, "r") is FinishReason.ABORT


def test_a_failed_job_runs_again() -> None:
    rig = Rig(unit_spec())
    asked = request("r")
    rig.add(asked)
    for _ in range(3):
        rig.step()
    rig.launch()
    rig.fail()
    rig.run()
    rig.check_outputs([asked])


def test_a_reset_loses_memory_but_no_request() -> None:
    rig = Rig(unit_spec())
    requests = [request(str(i), "ab"[i % 2]) for i in range(6)]
    rig.add(*requests)
    for _ in range(4):
        rig.step()
    rig.launch()
    job = rig.running[0][1]
    result = rig.memory.run(job)
    rig.reset()
    stats = rig.scheduler.stats(rig.now, "unit")
    assert stats.free_blocks == stats.num_blocks
    late = rig.scheduler.complete(job, result, rig.now)
    assert (len(late.tokens), late.events) == (0, ())
    rig.run()
    rig.check_outputs(requests)
    rig.check_empty()


def test_recovered_output_counts_as_output() -> None:
    rig = Rig(unit_spec())
    whole = request("r", num_output=12)
    output = np.array(expected_output(whole)[:7], dtype=np.int32)
    rig.add(replace(whole, output_tokens=output))
    rig.run()
    assert rig.tokens["r"] == expected_output(whole)[7:]
    admission = rig.jobs[0].admissions[0]
    assert (admission.num_prompt_tokens, len(admission.tokens)) == (10, 17)


def test_recovered_output_that_had_ended_ends_at_once() -> None:
    rig = Rig(unit_spec())
    whole = request("r", num_output=5)
    rig.add(replace(whole, output_tokens=np.array(expected_output(whole), dtype=np.int32)))
    assert reason(rig, "r") is FinishReason.LENGTH
    assert rig.launch() == []


def test_an_id_may_be_live_only_once() -> None:
    rig = Rig(unit_spec())
    rig.add(request("r"))
    with pytest.raises(ValueError, match="'r' is here already"):
        rig.scheduler.add(request("r"), rig.now)
    rig.run()
    assert rig.scheduler.add(request("r"), rig.now) is None


def test_prompt_logprobs_are_reported_once_despite_recompute() -> None:
    rig = Rig(unit_spec(token_budget=8))
    rig.add(request("r", num_prompt=20, prompt_logprobs=0, cacheable=False))
    for _ in range(2):
        rig.step()
    assert rig.prompt_logprobs["r"] == list(range(16))
    rig.reset()
    rig.run()
    assert rig.prompt_logprobs["r"] == list(range(19))


def test_logprobs_follow_the_cut() -> None:
    spec = unit_spec([model_spec("a", eos_token_ids=(7,))])
    scheduler = UnitScheduler(spec, max_steps=4)
    for name in ("r", "s"):
        scheduler.add(request(name, num_output=9, ignore_eos=False), 0.0)

    def complete(tokens, counts, logprobs):
        (job,) = scheduler.next_jobs(0.0)
        arrays = (np.array(values, dtype=np.int32) for values in (tokens, counts))
        return scheduler.complete(job, JobResult(job.job_id, *arrays, 0.1, logprobs, {}), 0.0)

    complete([1, 1], [1, 1], {})
    entries = tuple(TokenLogprobs(token, -1.0, 1) for token in (2, 7, 3, 4))
    output = complete([2, 7, 3, 4, 5, 5, 5, 5], [4, 4], {0: entries})
    assert output.tokens.tolist() == [2, 7, 5, 5, 5, 5]
    assert output.counts.tolist() == [2, 4]
    assert output.logprobs == {0: entries[:2]}
    assert isinstance(output.events[0], Finished)
    assert output.events[0].stop_token == 7


def test_stats_count() -> None:
    rig = Rig(unit_spec())
    rig.add(request("r", num_prompt=10, num_output=5), request("s", num_prompt=7, num_output=4))
    waiting = rig.scheduler.stats(rig.now, "unit").models[0]
    assert (waiting.num_waiting, waiting.num_running, waiting.prompt_tokens) == (2, 0, 0)
    assert waiting.waiting_tokens == 17
    rig.step()
    running = rig.scheduler.stats(rig.now, "unit").models[0]
    assert (running.num_waiting, running.num_running, running.used_blocks) == (0, 2, 3 * 4)
    assert (running.prompt_tokens, running.output_tokens) == (17, 2)
    assert running.waiting_tokens == 0
    rig.run()
    ended = rig.scheduler.stats(rig.now, "unit").models[0]
    assert (ended.prompt_tokens, ended.output_tokens) == (17, 9)
    assert ended.rate_per_s == 1.0, "the planned rate until the first measurement"
    assert not ended.is_rate_measured
    rig.now += 10.0
    rig.launch()
    measured = rig.scheduler.stats(rig.now, "unit").models[0]
    assert measured.is_rate_measured and measured.rate_per_s < 0.21


def test_what_waits_falls_with_each_chunk_of_a_prompt() -> None:
    rig = Rig(unit_spec(token_budget=4))
    rig.add(request("r", num_prompt=10, num_output=1))
    left = []
    while rig.num_open:
        left.append(rig.scheduler.stats(rig.now, "unit").models[0].waiting_tokens)
        rig.step()
    assert left == [10, 6, 2]


def test_wakes_up_for_the_next_quota_adaptation() -> None:
    rig = Rig(unit_spec(quota_period_s=3.0))
    assert rig.scheduler.next_wakeup(rig.now) is None
    rig.add(request("r"))
    assert rig.scheduler.next_wakeup(rig.now) == 103.0
    rig.now = 103.5
    rig.launch()
    assert rig.scheduler.next_wakeup(rig.now) == 106.5
    assert Rig(unit_spec(lane="mixed")).scheduler.next_wakeup(0.0) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lane": "fastest"}, "unknown lane 'fastest': one of adbs, mixed, round-robin, temporal"),
        (
            {"packing": "best"},
            "unknown packing 'best': one of additive, fcfs, hybrid, priority",
        ),
        ({"num_blocks": 8}, "a pool of 8 blocks holds not one column"),
        (
            {"workers": (WorkerSpec(0, (1.0,), frozenset({Phase.DECODE})),)},
            "lane 'adbs' needs a worker that runs prefill",
        ),
    ],
)
def test_bad_specifications_are_refused(changes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        UnitScheduler(unit_spec(**changes))


def test_the_default_policy_is_adbs() -> None:
    assert SchedulerSpec().lane == "adbs"
    rig = Rig(replace(unit_spec(), scheduler=SchedulerSpec()))
    rig.add(request("r"))
    rig.run()
    rig.check_empty()
