"""Runs of forced tokens: a job returns several tokens of a row, and the next one computes them."""

import random
from dataclasses import replace

import pytest

from muxcluster.core.job import Phase
from muxcluster.core.sampling import Constraint
from tests.scheduling.fake_worker import num_forced
from tests.scheduling.rig import LANES, Rig, expected_output, model_spec, request, unit_spec
from tests.scheduling.test_random_runs import WORKERS, check_ends, random_requests, run_to_the_end

ANY = Constraint("{}")
NUM_RUNS = 6


def constrained(rng: random.Random, requests: list) -> list:
    """The requests, most of them with a constraint, which ends at an end token in any case."""
    return [
        replace(each, sampling=replace(each.sampling, constraint=ANY, ignore_eos=False))
        if rng.random() < 0.7
        else each
        for each in requests
    ]


@pytest.mark.parametrize("packing", ["priority", "hybrid"])
@pytest.mark.parametrize("lane", LANES)
def test_random_runs_end(lane: str, packing: str) -> None:
    """The fake worker finds every token that is computed at another place, or not at all."""
    forced = 0
    for seed in range(NUM_RUNS):
        rng = random.Random(f"forced {lane} {packing} {seed}")
        spec = unit_spec(
            lane=lane,
            packing=packing,
            num_blocks=rng.choice((36, 60, 121, 200)),
            num_host_blocks=rng.choice((0, 40, 400)),
            workers=rng.choice(WORKERS),
            token_budget=rng.choice((5, 16, 64)),
            max_decode_rows=rng.choice((2, 256)),
            pipeline_depth=rng.choice((1, 2)),
        )
        rig = Rig(spec, seed)
        waiting = constrained(rng, random_requests(rng, seed, 16))
        check_ends(rig, run_to_the_end(rng, rig, waiting))
        forced += sum(each.num_forced for each in rig.scheduler.stats(rig.now, "unit").models)
    assert forced > 5


@pytest.mark.parametrize("joins_forced", [True, False])
def test_a_run_takes_one_job(joins_forced: bool) -> None:
    asked = request("r", num_prompt=10, num_output=40, constraint=ANY, ignore_eos=False)
    assert len(expected_output(asked)) == 40
    rig = Rig(unit_spec([model_spec("a")], lane="mixed", joins_forced=joins_forced))
    rig.add(asked)
    rig.run().check_outputs([asked])
    counts, place = [], 0
    while place < 40:
        counts.append(1 + (num_forced("r", place) if joins_forced else 0))
        place += counts[-1]
    assert len(rig.jobs) == len(counts)
    computed = [int(job.rows.counts[0]) for job in rig.jobs]
    assert computed == [10, *counts[:-1]]
    stats = rig.scheduler.stats(rig.now, "unit").models[0]
    assert stats.num_forced == 40 - len(counts)


@pytest.mark.parametrize("joins_forced", [True, False])
def test_rows_that_may_get_several_tokens_are_not_pipelined(joins_forced: bool) -> None:
    """What follows a job is not known before its end."""
    spec = unit_spec(
        [model_spec("a"), model_spec("b")],
        lane="mixed",
        pipeline_depth=2,
        joins_forced=joins_forced,
    )
    for name, constraint in (("a", ANY), ("b", None)):
        rig = Rig(spec)
        asked = request("r", name, num_output=30, constraint=constraint, ignore_eos=False)
        assert len(expected_output(asked)) == 30
        rig.add(asked)
        rig.run().check_outputs([asked])
        is_followed = any(job.follows is not None for job in rig.jobs)
        assert is_followed is (name == "b" or not joins_forced)


def test_prompts_get_what_forced_tokens_leave_of_a_job() -> None:
    """A mixed job keeps to its budget, or has no prompt."""
    spec = unit_spec([model_spec("a")], lane="mixed", token_budget=12)
    rig = Rig(spec)
    for number in range(12):
        asked = request(f"{number}", num_prompt=30, num_output=30, constraint=ANY)
        rig.add(asked)
    rig.run()
    assert {job.phase for job in rig.jobs} == {Phase.MIXED}
    for job in rig.jobs:
        has_prompt = bool((job.rows.starts < 30).any())
        assert not has_prompt or job.rows.counts.sum() <= 12
