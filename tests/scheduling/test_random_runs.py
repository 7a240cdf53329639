"""Random runs to the end under every lane: aborts, failures, restarts, tiny pools."""

import random
from collections.abc import Mapping

import pytest

from muxcluster.core.events import Finished, FinishReason, Rejected
from muxcluster.core.job import Job, Phase, WorkerSpec
from muxcluster.core.request import Request, ServiceClass, Slo
from tests.amounts import examples
from tests.scheduling.rig import (
    LADDER,
    LANES,
    SOME_LANES,
    TWO_WORKERS,
    Rig,
    expected_output,
    request,
    unit_spec,
)

SPLIT = (
    WorkerSpec(0, (0.5,), frozenset({Phase.PREFILL, Phase.MIXED})),
    WorkerSpec(1, (0.5,), frozenset({Phase.DECODE})),
)
WORKERS = (TWO_WORKERS, (WorkerSpec(3, (1.0,)),), SPLIT, (*TWO_WORKERS, WorkerSpec(2, LADDER)))


def random_request(rng: random.Random, name: str):
    """Any request: shared prefixes, both classes, recovered output, sometimes too long."""
    shared = [rng.randrange(3)] * 16 if rng.random() < 0.4 else []
    prompt = shared + [rng.randrange(50) for _ in range(rng.randint(1, 28))]
    return request(
        name,
        rng.choice("aaaabbc"),
        num_output=rng.choice((1, 2, 9, 20, 30)),
        prompt_tokens=prompt,
        ignore_eos=rng.random() < 0.5,
        stop_token_ids=rng.choice(((), (), (3, 4))),
        prompt_logprobs=rng.choice((None, None, 0)),
        service_class=rng.choice((*ServiceClass, ServiceClass.INTERACTIVE)),
        slo=rng.choice((None, Slo(0.5, 0.2))),
        priority=rng.choice((0, 0, 0, -1, 3)),
        cacheable=rng.random() < 0.8,
        cache_salt=rng.choice(("", "", "tenant")),
    )


def random_step(rng: random.Random, rig: Rig, waiting: list, asked: dict) -> None:
    """One thing that may happen to a unit."""
    draw = rng.random()
    if waiting and draw < 0.35:
        rig.add(waiting.pop())
    elif draw < 0.40:
        rig.abort(rng.choice(list(asked)))
    elif draw < 0.42 and rig.running:
        rig.fail()
    elif draw < 0.425:
        rig.reset()
    elif draw < 0.6:
        rig.launch()
    elif rig.num_open:
        rig.step()


def random_requests(rng: random.Random, prefix: object, most: int) -> list[Request]:
    """One to `most` of them; their names begin with `prefix`."""
    return [random_request(rng, f"{prefix}-{i}") for i in range(rng.randint(1, most))]


def run_to_the_end(rng: random.Random, rig: Rig, waiting: list[Request]) -> dict[str, Request]:
    """The requests come, the last one first, things happen, and all of them end: by name."""
    asked = {each.request_id: each for each in waiting}
    while waiting:
        random_step(rng, rig, waiting, asked)
    rig.run()
    while rig.running:
        rig.finish()
    return asked


def check_ends(rig: Rig, asked: Mapping[str, Request]) -> None:
    """All ended, nothing leaks; each has the beginning of what it must get, or the whole of it
    where it was neither aborted nor refused."""
    rig.check_empty()
    assert set(rig.ends) == set(asked)
    for name, end in rig.ends.items():
        output, got = expected_output(asked[name]), rig.tokens[name]
        if isinstance(end, Rejected):
            assert not got
        elif end.reason in (FinishReason.STOP, FinishReason.LENGTH):
            assert got == output
        else:
            assert output[: len(got)] == got


def random_run(lane: str, seed: int, **policy) -> tuple[Rig, dict]:
    """A run to the end; the rig checks the scheduler's invariants after each step."""
    rng = random.Random(f"{lane} {seed}")
    spec = unit_spec(
        lane=lane,
        num_blocks=rng.choice((36, 60, 90, 121, 160, 200)),
        workers=rng.choice(WORKERS),
        token_budget=rng.choice((5, 16, 64)),
        max_decode_rows=rng.choice((2, 256)),
        quota_period_s=rng.choice((0.2, 3.0)),
        **policy,
    )
    rig = Rig(spec, seed, max_steps=rng.choice((1, 1, 4)))
    return rig, run_to_the_end(rng, rig, random_requests(rng, seed, 14))


def check_prompt_logprobs(asked: Request, positions: list[int]) -> None:
    """Each prompt position once and in order, however often the prompt was recomputed."""
    if asked.sampling.prompt_logprobs is None:
        assert positions == []
    elif not asked.cacheable:
        assert positions == list(range(len(asked.prompt_tokens) - 1))
    else:
        assert positions == sorted(set(positions))


@pytest.mark.parametrize("lane", SOME_LANES)
def test_random_runs_end(lane: str) -> None:
    reasons = set()
    for seed in range(examples(10, 125)):
        rig, asked = random_run(lane, seed)
        check_ends(rig, asked)
        for name, end in rig.ends.items():
            reasons.add("rejected" if isinstance(end, Rejected) else end.reason)
            if isinstance(end, Finished) and end.reason in (FinishReason.STOP, FinishReason.LENGTH):
                check_prompt_logprobs(asked[name], rig.prompt_logprobs[name])
    assert {FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT} <= reasons


def test_runs_reach_every_rare_path() -> None:
    """The random runs above do preempt, fail, reject and hit the prefix cache."""
    rigs = [random_run(lane, seed)[0] for lane in LANES for seed in range(8)]
    ends = [end for rig in rigs for end in rig.ends.values()]
    finished = [end for end in ends if isinstance(end, Finished)]
    assert any(isinstance(end, Rejected) for end in ends)
    assert any(end.num_preemptions for end in finished)
    assert any(end.num_cached_tokens for end in finished)
    assert any(job.max_steps > 1 for rig in rigs for job in rig.jobs)
    assert {job.phase for rig in rigs for job in rig.jobs} == set(Phase)
    moved = [rig for rig in rigs if rig.quotas() != Rig(rig.spec).quotas()]
    assert moved
    assert any(not samples for rig in rigs for job in rig.jobs for samples in job.rows.samples)


def description(job: Job) -> tuple:
    """Everything a worker is told, as plain values."""
    rows, tables = job.rows, job.tables
    arrays = (rows.table_rows, rows.starts, rows.counts, rows.samples)
    arrays += (tables.rows, tables.columns, tables.blocks)
    admissions = [(a.row, a.request_id, a.tokens.tolist()) for a in job.admissions]
    head = (job.job_id, job.model, job.phase, job.worker_id, job.share, job.max_steps)
    return (*head, admissions, *(array.tolist() for array in arrays))


@pytest.mark.parametrize("lane", SOME_LANES)
def test_same_inputs_give_the_same_jobs(lane: str) -> None:
    first, second = (
        [description(job) for seed in range(3) for job in random_run(lane, seed)[0].jobs]
        for _ in range(2)
    )
    assert len(first) > 50
    assert first == second
