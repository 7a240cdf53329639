"""Runs of forced tokens: a job returns several tokens of a row, and the next one computes them."""

import random
from dataclasses import replace

import pytest

from muxcluster.core.job import Phase
from muxcluster.core.request import ServiceClass
from muxcluster.core.sampling import Constraint
from tests.scheduling.fake_worker import num_forced
from tests.scheduling.rig import (
    SOME_LANES,
    Rig,
    expected_output,
    model_spec,
    request,
    unit_spec,
)
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
@pytest.mark.parametrize("lane", SOME_LANES)
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


def runs_of_constrained(packing: str, **policy) -> Rig:
    """Twelve requests with runs of up to eight tokens, to the end."""
    rig = Rig(unit_spec([model_spec("a", max_seqs=12)], packing=packing, **policy))
    for number in range(12):
        service = ServiceClass.BATCH if number % 3 == 0 else ServiceClass.INTERACTIVE
        more = {"constraint": ANY, "service_class": service}
        rig.add(request(f"{number}", num_prompt=30, num_output=30, **more))
    return rig.run()


@pytest.mark.parametrize("packing", ["priority", "hybrid"])
def test_forced_tokens_count_against_the_budget_of_a_mixed_job(packing: str) -> None:
    rig = runs_of_constrained(packing, lane="mixed", num_blocks=400, token_budget=12)
    assert {job.phase for job in rig.jobs} == {Phase.MIXED}
    sizes = [(int(job.rows.counts.sum()), len(job.rows)) for job in rig.jobs]
    assert max(num_tokens for num_tokens, _ in sizes) <= 12
    assert any(num_tokens > num_rows > 1 for num_tokens, num_rows in sizes)


@pytest.mark.parametrize("packing", ["priority", "hybrid"])
def test_a_decode_job_has_no_more_tokens_than_rows_or_budget_permit(packing: str) -> None:
    policy = {"lane": "temporal", "num_blocks": 400, "token_budget": 16, "max_decode_rows": 6}
    rig = runs_of_constrained(packing, **policy)
    jobs = [job for job in rig.jobs if job.phase is Phase.DECODE]
    assert max(len(job.rows) for job in jobs) == 6
    assert 6 < max(int(job.rows.counts.sum()) for job in jobs) <= 16


def test_the_next_step_of_rows_that_wait_has_all_their_forced_tokens() -> None:
    """What a packing takes a step of another model for, against tokens counted one by one."""
    rig = Rig(unit_spec([model_spec("a"), model_spec("b")], lane="mixed", packing="hybrid"))
    rig.add(*(request(f"{number}", num_output=30, constraint=ANY) for number in range(5)))
    slack, model = rig.scheduler._packing._packing._slack, rig.scheduler._models["a"]
    num_forced_seen = 0
    while rig.num_open:
        rig.step()
        table, work = model.running, slack._decoding(model)
        rows = table.idle_decoding().tolist()
        places = [range(table.num_computed[row], table.num_tokens[row]) for row in rows]
        assert work.num_rows == sum(map(len, places))
        assert work.context == sum(place + 1 for each in places for place in each)
        assert work.num_tokens == 0
        num_forced_seen += int(work.num_rows) - len(rows)
    assert num_forced_seen > 0
