"""`pipeline_depth` 2: jobs that are sent before the one they go on from has ended."""

from functools import partial
from itertools import count

import pytest

from muxcluster.core.events import FinishReason
from muxcluster.core.job import Job, Phase, WorkerSpec
from muxcluster.core.request import Request, ServiceClass
from tests.amounts import examples
from tests.scheduling import test_hybrid_random, test_interactive_lending, test_random_runs
from tests.scheduling.rig import (
    SOME_LANES,
    Rig,
    expected_output,
    model_spec,
    request,
    unit_spec,
)

FOLLOWING_LANES = ("adbs", "temporal", "mixed")
ONE_WORKER = (WorkerSpec(0, (1.0,)),)


def stopping(num_output: int, **more) -> Request:
    """A request that ends with an end token as its output token number `num_output`."""
    for number in count():
        asked = request(f"s{number}", num_output=30, ignore_eos=False, **more)
        if len(expected_output(asked)) == num_output:
            return asked
    raise AssertionError("count() ends")


def decoding(*requests: Request, **spec) -> Rig:
    """A rig in which all of them have their first token, and nothing runs."""
    rig = Rig(unit_spec(pipeline_depth=2, **spec))
    rig.add(*requests)
    while any(not rig.tokens[asked.request_id] for asked in requests):
        rig.step()
        assert not rig.ends
    assert not rig.running
    return rig


def pair(rig: Rig) -> tuple[Job, Job]:
    """The job and its follower that the scheduler launches now."""
    first, second = rig.launch()
    assert second.follows == first.job_id
    assert (second.model, second.phase) == (first.model, first.phase)
    assert (second.worker_id, second.share) == (first.worker_id, first.share)
    return first, second


def end(rig: Rig) -> None:
    """All requests end, then all jobs, and nothing is left."""
    rig.run()
    while rig.running:
        rig.finish()
    rig.check_empty()


def used(rig: Rig) -> int:
    return sum(rig.scheduler.used_blocks().values())


RUNS = {
    "priority": test_random_runs.random_run,
    "round-robin": partial(test_random_runs.random_run, packing="round-robin"),
    "hybrid": test_hybrid_random.random_run,
}


@pytest.mark.parametrize("packing", RUNS)
@pytest.mark.parametrize("lane", FOLLOWING_LANES)
def test_random_runs_end(lane: str, packing: str) -> None:
    """End tokens, aborts, failures and restarts at any time, blocks that are lent and restored; the
    fake worker's memory finds every block that a follower writes to when it is another's."""
    num_followers = 0
    for seed in range(examples(3, 6)):
        rig, asked = RUNS[packing](lane, seed, pipeline_depth=2)
        test_random_runs.check_ends(rig, asked)
        num_followers += sum(job.follows is not None for job in rig.jobs)
    assert num_followers > 2


@pytest.mark.slow
@pytest.mark.parametrize("lane", FOLLOWING_LANES)
def test_random_runs_that_lend_end(lane: str) -> None:
    """Interactive sequences lend, too."""
    runs = [test_interactive_lending.random_run(lane, seed, pipeline_depth=2) for seed in range(8)]
    assert sum(job.follows is not None for rig in runs for job in rig.jobs) > 5
    assert any(job.copies for rig in runs for job in rig.jobs)


@pytest.mark.parametrize("lane", SOME_LANES)
def test_without_the_second_stage_nobody_follows(lane: str) -> None:
    rig = Rig(unit_spec(lane=lane))
    rig.add(*(request(f"r{i}", num_output=20) for i in range(3)))
    assert all(job.follows is None for job in rig.run().jobs)


@pytest.mark.parametrize("lane", SOME_LANES)
def test_a_lone_sequence_is_always_one_job_ahead(lane: str) -> None:
    """But for the first and the last tokens; the strict rotation waits for each job."""
    rig = decoding(request("r", num_output=20), lane=lane)
    prefills = len(rig.jobs)
    rig.run()
    followers = [job for job in rig.jobs if job.follows is not None]
    assert len(followers) == (0 if lane == "round-robin" else 18)
    for job in followers:
        (before,) = (other for other in rig.jobs if other.job_id == job.follows)
        assert job.rows.starts[0] == before.rows.starts[0] + 1
    assert len(rig.jobs) == prefills + 19
    rig.check_outputs([request("r", num_output=20)])


def test_who_is_known_to_end_is_not_in_the_follower() -> None:
    asked = [request("short", num_output=2), request("long", num_output=9)]
    first, second = pair(decoding(*asked, lane="mixed"))
    assert len(first.rows) == 2
    assert len(second.rows) == 1


def test_blocks_of_an_ended_sequence_stay_until_the_follower_has_written_there() -> None:
    """The pool holds one of the two: given away at once, they would be the other's while the
    follower writes to them on another worker."""
    ending = stopping(3, num_prompt=30)
    waiting = request("waits", num_prompt=40)
    models = (model_spec("a", prefix_caching=False),)
    rig = decoding(ending, models=models, num_blocks=4 * 8, lane="adbs")
    rig.add(waiting)
    pair(rig)
    rig.finish()
    assert not rig.ends
    rig.launch()
    rig.finish()
    assert rig.ends[ending.request_id].reason is FinishReason.STOP
    assert len(rig.running) == 1, "its follower"
    assert used(rig) > 0
    assert rig.scheduler.stats(rig.now, "unit").models[0].num_running == 0
    assert rig.launch() == [], "no block is free yet"
    rig.finish()
    assert used(rig) == 0
    assert [job.phase for job in rig.launch()] == [Phase.PREFILL]
    end(rig)
    rig.check_outputs([ending, waiting])


def test_what_a_follower_computes_of_an_ended_sequence_is_dropped() -> None:
    """The other row's result is its own."""
    ending, lasting = stopping(2), request("lasts", num_output=6)
    rig = decoding(ending, lasting, lane="mixed")
    first, second = pair(rig)
    assert len(first.rows) == len(second.rows) == 2
    end(rig)
    rig.check_outputs([ending, lasting])


def test_an_id_may_come_again_while_the_follower_runs() -> None:
    ending = stopping(2)
    rig = decoding(ending, lane="temporal")
    pair(rig)
    rig.finish()
    assert rig.ends.pop(ending.request_id).reason is FinishReason.STOP
    rig.tokens.clear()
    rig.num_accepted -= 1
    rig.add(ending)
    end(rig)
    rig.check_outputs([ending])


def test_an_aborted_sequence_ends_with_the_job_that_runs() -> None:
    rig = decoding(request("r", num_output=20), lane="temporal")
    pair(rig)
    rig.abort("r")
    assert not rig.ends
    rig.finish()
    assert rig.ends["r"].reason is FinishReason.ABORT
    assert used(rig) > 0
    rig.abort("r")
    rig.finish()
    assert not rig.running
    rig.check_empty()


def test_a_failed_job_takes_its_follower_along() -> None:
    """Once blamed, not twice: the next job is lone, and clears the sequence."""
    asked = request("r", num_output=6)
    rig = decoding(asked, lane="temporal")
    first, second = pair(rig)
    rig.fail(first)
    rig.refused.clear()
    lone, *others = rig.launch()
    assert not others, "a suspect is not followed"
    assert lone.admissions
    late = rig.scheduler.fail(second, rig.now, "refused")
    assert not late.events and not len(late.tokens)
    late = rig.scheduler.complete(second, rig.memory.run(lone), rig.now)
    assert not late.events and not len(late.tokens)
    end(rig)
    rig.check_outputs([asked])


def test_a_follower_that_fails_gives_ended_sequences_back() -> None:
    ending, lasting = stopping(2), request("lasts", num_output=6)
    rig = decoding(ending, lasting, lane="mixed")
    _, second = pair(rig)
    rig.finish()
    assert ending.request_id in rig.ends
    rig.fail(second)
    end(rig)
    rig.check_outputs([ending, lasting])


@pytest.mark.parametrize("num_finished", [0, 1])
def test_a_reset_takes_jobs_and_followers(num_finished: int) -> None:
    ending, lasting = stopping(2), request("lasts", num_output=6)
    rig = decoding(ending, lasting, lane="mixed")
    pair(rig)
    for _ in range(num_finished):
        rig.finish()
    rig.reset()
    end(rig)
    rig.check_outputs([ending, lasting])


@pytest.mark.parametrize("lane", FOLLOWING_LANES)
def test_whoever_could_take_the_place_is_not_kept_waiting(lane: str) -> None:
    """A prompt that fits, and another model's sequence."""
    rig = decoding(request("r", num_output=30), lane=lane, workers=ONE_WORKER)
    pair(rig)
    rig.add(request("new", "b", num_output=30))
    rig.finish()
    assert rig.launch() == [], "the follower runs, and nothing is sent after it"
    rig.finish()
    assert any(job.model == "b" for job in rig.launch())
    while not rig.tokens["new"]:
        rig.step()
    (job,) = rig.launch()
    assert job.phase is not Phase.PREFILL, "both decode, and take turns"


def test_a_prompt_that_waits_for_blocks_keeps_nobody_from_following() -> None:
    rig = decoding(request("r", num_prompt=40, num_output=20), lane="temporal", num_blocks=36)
    rig.add(request("long", num_prompt=40))
    pair(rig)


def test_beside_a_running_prefill_decodes_are_followed() -> None:
    rig = decoding(request("r", num_output=30), lane="adbs")
    rig.add(request("new", "b", num_prompt=30))
    jobs = rig.launch()
    assert [job.phase.value for job in jobs] == ["prefill", "decode", "decode"]
    assert jobs[2].follows == jobs[1].job_id


def test_no_block_is_taken_from_others_for_a_follower() -> None:
    """Both rows are at the end of their blocks, and free blocks are left for one step alone."""
    asked = [request(f"r{i}", num_prompt=7, num_output=20) for i in range(2)]
    rig = Rig(
        unit_spec(
            (model_spec("a", prefix_caching=False),),
            num_blocks=20,
            lane="temporal",
            pipeline_depth=2,
        )
    )
    rig.add(*asked)
    rig.run()
    rig.check_outputs(asked)
    preempting = set(rig.preempted)
    plain = Rig(unit_spec((model_spec("a", prefix_caching=False),), num_blocks=20, lane="temporal"))
    plain.add(*asked)
    plain.run()
    assert preempting == set(plain.preempted)


def test_batch_work_of_the_hybrid_packing_is_decided_job_by_job() -> None:
    rig = decoding(request("r", num_output=20), lane="mixed", packing="hybrid")
    pair(rig)
    rig.add(request("b", num_output=20, service_class=ServiceClass.BATCH))
    rig.run()
    both = [job for job in rig.jobs if len(job.rows) == 2]
    assert both and all(job.follows is None for job in both)
