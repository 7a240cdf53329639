"""Speculation: draft tokens in jobs that decode, which change no token and no other decision."""

import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.core.events import Finished
from muxcluster.core.job import DraftTokens, Job, Phase, WorkerSpec
from muxcluster.core.request import ServiceClass
from muxcluster.core.sampling import Constraint
from muxcluster.core.unitspec import ModelSpec, SpeculationSpec
from muxcluster.scheduling.packing.lookup import looked_up
from muxcluster.scheduling.steptime.line import Line, work_of
from tests.amounts import examples
from tests.scheduling import test_hybrid_random, test_random_runs
from tests.scheduling.rig import (
    SOME_LANES,
    Rig,
    mixed_models,
    model_spec,
    request,
    unit_spec,
)
from tests.scheduling.test_random_runs import WORKERS, check_ends, random_requests, run_to_the_end
from tests.scheduling.test_windows import windowed

FORCED = SpeculationSpec(num_tokens=5, shortest_match=1, is_forced=True)
ONE_WORKER = (WorkerSpec(0, (1.0,)),)
ANY = Constraint("{}")


def speculating(models: list[ModelSpec] | tuple[ModelSpec, ...]) -> list[ModelSpec]:
    return [replace(each, speculation=FORCED) for each in models]


def slow_lookup(tokens: list[int], most: int, longest: int, shortest: int) -> list[int]:
    """As `looked_up`, by looking everywhere, the longest end first and the last place first."""
    for length in range(longest, shortest - 1, -1):
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[len(tokens) - length :]:
                period = tokens[end:]
                return [period[place % len(period)] for place in range(most)]
    return []


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=30),
    st.integers(0, 9),
    st.integers(1, 5),
    st.integers(1, 5),
)
def test_lookup_is_that_of_a_search_everywhere(
    tokens: list[int], most: int, longest: int, shortest: int
) -> None:
    longest = max(longest, shortest)
    found = looked_up(np.array(tokens, dtype=np.int32), most, longest=longest, shortest=shortest)
    assert found.dtype == np.int32
    assert found.tolist() == slow_lookup(tokens, most, longest, shortest)


def test_drafts_of_some_rows() -> None:
    drafts = DraftTokens(np.array([2, 0, 3], np.int32), np.array([1, 2, 3, 4, 5], np.int32))
    some = drafts.of(np.array([2, 1, 0]))
    assert (some.counts.tolist(), some.tokens.tolist()) == ([3, 0, 2], [3, 4, 5, 1, 2])
    last = drafts.of(slice(1, 3))
    assert (last.counts.tolist(), last.tokens.tolist()) == ([0, 3], [3, 4, 5])
    none = drafts.of(np.array([False, True, False]))
    assert (none.counts.tolist(), none.tokens.tolist()) == ([0], [])


def counts_of(rig: Rig) -> tuple[int, int]:
    """Draft tokens of all models, and those that were right."""
    models = rig.scheduler.stats(rig.now, "unit").models
    return sum(m.num_draft_tokens for m in models), sum(m.num_accepted_tokens for m in models)


@pytest.mark.parametrize("lane", SOME_LANES)
def test_random_runs_end(lane: str) -> None:
    """Aborts, failures and restarts at any time; some outputs repeat themselves, others do not.

    The fake worker's memory keeps what wrong drafts have written until it is written again.
    """
    num_drafted = num_accepted = 0
    for seed, packing in product(range(examples(2, 30)), ("priority", "hybrid")):
        rng = random.Random(f"speculation {lane} {packing} {seed}")
        spec = unit_spec(
            speculating(windowed() if seed % 2 else mixed_models()),
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
        name = "loop" if seed < 2 else rng.choice(("loop", ""))
        requests = random_requests(rng, f"{name}{seed}", 16)
        if rng.random() < 0.3:
            requests = [
                replace(each, sampling=replace(each.sampling, constraint=ANY, ignore_eos=False))
                if rng.random() < 0.5
                else each
                for each in requests
            ]
        check_ends(rig, run_to_the_end(rng, rig, requests))
        drafted, accepted = counts_of(rig)
        num_drafted, num_accepted = num_drafted + drafted, num_accepted + accepted
    assert num_drafted > num_accepted > 10


def test_random_runs_that_lend_end() -> None:
    num_drafted = num_restored = 0
    for seed in range(examples(6, 60)):
        rig, asked = test_hybrid_random.random_run(
            ("adbs", "mixed")[seed % 2],
            seed,
            models=speculating(mixed_models()),
            pipeline_depth=1 + seed // 2 % 2,
        )
        check_ends(rig, asked)
        num_drafted += counts_of(rig)[0]
        num_restored += sum(
            each.num_restored_slots for each in rig.scheduler.stats(rig.now, "unit").models
        )
    assert num_drafted > 0
    assert num_restored > 0


def test_random_runs_of_several_steps_a_job_end() -> None:
    for seed in range(examples(2, 20)):
        models = speculating(mixed_models())
        rig, asked = test_random_runs.random_run("temporal", seed, models=models)
        check_ends(rig, asked)


def of_one(speculation: SpeculationSpec | None, **more) -> Rig:
    """One model on one worker, all jobs mixed."""
    models = [model_spec("a", speculation=speculation)]
    return Rig(unit_spec(models, lane="mixed", workers=ONE_WORKER), **more)


def test_a_text_that_repeats_itself_takes_fewer_jobs() -> None:
    asked = request("loop", num_prompt=6, num_output=50)
    rig = of_one(FORCED)
    rig.add(asked)
    rig.run().check_outputs([asked])
    drafted, accepted = counts_of(rig)
    assert len(rig.jobs) == 50 - accepted < 25
    end = rig.ends["loop"]
    assert isinstance(end, Finished)
    assert (end.num_drafted, end.num_accepted) == (drafted, accepted)


@pytest.mark.parametrize("num_output", range(1, 12))
def test_an_output_is_never_longer_than_asked(num_output: int) -> None:
    """Nor does any draft lie behind its last token."""
    asked = request("loop", num_prompt=6, num_output=num_output)
    rig = of_one(FORCED)
    rig.add(asked)
    rig.run().check_outputs([asked])
    ends = [int((job.rows.starts + job.rows.counts)[0]) for job in rig.jobs]
    assert max(ends) <= 6 + num_output - 1


def test_a_context_is_never_exceeded() -> None:
    asked = request("loop", num_prompt=50, num_output=40)
    rig = of_one(FORCED)
    rig.add(asked)
    rig.run().check_outputs([asked])
    assert counts_of(rig)[1] > 0


def test_rows_with_a_constraint_have_no_drafts() -> None:
    rig = of_one(FORCED)
    rig.add(request("loop", num_output=30, constraint=ANY))
    rig.run()
    assert counts_of(rig) == (0, 0)


def test_models_that_cannot_compute_a_position_again_have_no_drafts() -> None:
    for change in ({"is_positional": False}, {"backend": "dense"}, {"speculation": None}):
        models = [replace(model_spec("a", speculation=FORCED), **change)]
        rig = Rig(unit_spec(models, lane="mixed", workers=ONE_WORKER))
        rig.add(request("loop", num_output=30))
        rig.run()
        assert counts_of(rig) == (0, 0)


def test_drafts_count_against_the_budget_of_a_job() -> None:
    models = [model_spec("a", max_seqs=12, speculation=FORCED)]
    spec = unit_spec(models, lane="mixed", num_blocks=400, token_budget=14, workers=ONE_WORKER)
    rig = Rig(spec)
    asked = [request(f"loop{number}", num_prompt=9, num_output=30) for number in range(8)]
    rig.add(*asked)
    rig.run().check_outputs(asked)
    sizes = [int(job.rows.counts.sum()) for job in rig.jobs if job.rows.drafts is not None]
    assert sizes
    assert max(sizes) <= 14


def test_logits_are_at_no_more_places_than_plans_count() -> None:
    models = [model_spec("a", max_seqs=60, speculation=FORCED)]
    spec = unit_spec(models, lane="mixed", num_blocks=2000, token_budget=2048, workers=ONE_WORKER)
    rig = Rig(spec)
    asked = [request(f"loop{number}", num_prompt=9, num_output=12) for number in range(60)]
    rig.add(*asked)
    rig.run().check_outputs(asked)
    places = [int(job.rows.counts.sum()) for job in rig.jobs if job.rows.drafts is not None]
    assert 250 < max(places) <= 256


def test_a_short_pool_preempts_nobody_for_drafts() -> None:
    """Six sequences of 5 columns each fit exactly: with drafts nobody is preempted either."""
    models = [model_spec("a", speculation=FORCED, prefix_caching=False)]
    rig = Rig(unit_spec(models, lane="mixed", num_blocks=6 * 5 * 4, workers=ONE_WORKER))
    asked = [request(f"loop{number}", num_prompt=9, num_output=32) for number in range(6)]
    rig.add(*asked)
    rig.run().check_outputs(asked)
    assert rig.preempted == []


def test_jobs_with_drafts_are_neither_followed_nor_followers() -> None:
    models = [model_spec("a", speculation=FORCED), model_spec("b")]
    rig = Rig(unit_spec(models, lane="mixed", workers=ONE_WORKER, pipeline_depth=2))
    for name in ("a", "b"):
        rig.add(request(f"loop-{name}", name, num_prompt=6, num_output=40))
        rig.run()
        while rig.running:
            rig.finish()
    drafting = {job.job_id for job in rig.jobs if job.rows.drafts is not None}
    followers = [job for job in rig.jobs if job.follows is not None]
    assert drafting
    assert {job.model for job in followers} >= {"b"}
    assert not any(job.follows in drafting or job.job_id in drafting for job in followers)


def test_jobs_are_sent_ahead_where_blocks_for_drafts_are_short() -> None:
    """All columns are taken but one for each sequence that may grow."""
    models = [model_spec("a", speculation=FORCED, prefix_caching=False)]
    spec = unit_spec(
        models, lane="mixed", num_blocks=6 * 5 * 4, workers=ONE_WORKER, pipeline_depth=2
    )
    rig = Rig(spec)
    asked = [request(f"loop{number}", num_prompt=9, num_output=32) for number in range(6)]
    rig.add(*asked)
    rig.run().check_outputs(asked)
    assert sum(job.follows is not None for job in rig.jobs) > len(rig.jobs) // 2


def test_work_of_a_mixed_job_counts_drafts_as_rows() -> None:
    models = [model_spec("a", max_seqs=12, speculation=FORCED)]
    rig = Rig(unit_spec(models, lane="mixed", num_blocks=400, token_budget=64, workers=ONE_WORKER))
    for number in range(8):
        rig.add(request(f"loop{number}", num_prompt=20, num_output=30))
        for _ in range(3):
            rig.step()
    rig.run()
    jobs = [job for job in rig.jobs if job.rows.drafts is not None]
    mixed = 0
    for job in jobs:
        rows, work = job.rows, work_of(job)
        assert rows.drafts is not None
        decodes = (rows.counts == 1) | (rows.drafts.counts > 0)
        assert work.num_rows == rows.counts[decodes].sum()
        assert work.num_tokens == rows.counts[~decodes].sum()
        mixed += bool(work.num_tokens)
    assert mixed > 0


class FixedSeed:
    """A step takes `base_s` and `row_s` a row."""

    def __init__(self, base_s: float, row_s: float) -> None:
        self.base_s, self.row_s = base_s, row_s

    def line(self, phase: Phase, model: str, share: float) -> Line | None:
        return None if phase is Phase.MIXED else Line(self.base_s, self.row_s, 0.0)


class TimedRig(Rig):
    """Jobs take what the line of the seed says; of drafts, `draft_s` each."""

    line, draft_s = Line(1.0, 0.1, 0.0), 0.1

    def seconds(self, job: Job) -> float:
        num_drafts = 0 if job.rows.drafts is None else int(job.rows.drafts.counts.sum())
        rows = int(job.rows.counts.sum()) - num_drafts
        return self.line.seconds(rows, 0.0) + self.draft_s * num_drafts


def measured(
    name: str, num_requests: int, *, draft_s: float = 0.1, row_s: float = 0.1, **more
) -> TimedRig:
    """Requests of one model with outputs of 50 tokens, whose drafts must gain, to their ends."""
    speculation = SpeculationSpec(num_tokens=4, shortest_match=2)
    models = [model_spec("a", max_seqs=32, speculation=speculation)]
    spec = unit_spec(
        models, lane="mixed", num_blocks=4000, token_budget=256, workers=ONE_WORKER, **more
    )
    rig = TimedRig(spec, times=FixedSeed(1.0, row_s))
    rig.line, rig.draft_s = Line(1.0, row_s, 0.0), draft_s
    names = [f"{name}{number}" for number in range(num_requests)]
    asked = [request(each, num_prompt=4, num_output=50) for each in names]
    rig.add(*asked)
    rig.run()
    rig.check_outputs(asked)
    return rig


@pytest.mark.parametrize("packing", ["priority", "hybrid"])
@pytest.mark.parametrize("pipeline_depth", [1, 2])
def test_drafts_gain_where_they_are_right(packing: str, pipeline_depth: int) -> None:
    """Against the same requests without speculation, by the seconds of all jobs."""
    rig = measured("loop", 2, packing=packing, pipeline_depth=pipeline_depth)
    drafted, accepted = counts_of(rig)
    assert accepted > 40
    assert accepted > 0.5 * drafted
    assert rig.now - 100.0 < 0.75 * 50 * (1.0 + 2 * 0.1)


def test_drafts_that_are_wrong_end_by_themselves() -> None:
    """Where outputs repeat nothing, what matches by chance costs little."""
    rig = measured("x", 4)
    drafted, accepted = counts_of(rig)
    assert drafted < 40
    plain_s = 50 * (1.0 + 4 * 0.1)
    assert rig.now - 100.0 < 1.08 * plain_s


def test_drafts_end_under_load() -> None:
    """A row is worth less in a larger step: with 32 rows that each cost as much, nothing gains."""
    few, many = measured("loop", 1, row_s=0.5, draft_s=0.5), measured("loop", 32, row_s=0.5)
    assert counts_of(few)[0] > 0
    assert counts_of(many)[0] == 0


def test_drafts_end_where_they_cost_more_than_predicted() -> None:
    """Measured: a draft takes as long as a step."""
    rig = measured("loop", 2, draft_s=2.0)
    drafted, _ = counts_of(rig)
    assert 0 < drafted < 40


def test_a_job_in_so_many_has_no_drafts() -> None:
    """What a step takes without them must stay known, or the cost of drafts would be too."""
    models = [
        model_spec(
            "a", max_model_len=1024, speculation=SpeculationSpec(num_tokens=1, shortest_match=1)
        )
    ]
    spec = unit_spec(models, lane="mixed", num_blocks=4000, workers=ONE_WORKER)
    rig = TimedRig(spec, times=FixedSeed(1.0, 0.01))
    rig.draft_s = 0.01
    rig.add(request("loop", num_prompt=4, num_output=300))
    rig.run()
    in_a_row, longest = 0, 0
    for job in rig.jobs:
        in_a_row = in_a_row + 1 if job.rows.drafts is not None else 0
        longest = max(longest, in_a_row)
    assert 8 < longest <= 32


def test_rows_without_drafts_wait_little_for_those_of_others() -> None:
    """Steps with some rows of each kind are a quarter longer at most."""
    models = [
        model_spec("a", max_seqs=32, speculation=SpeculationSpec(num_tokens=8, shortest_match=2))
    ]
    spec = unit_spec(models, lane="mixed", num_blocks=4000, token_budget=256, workers=ONE_WORKER)
    rig = TimedRig(spec, times=FixedSeed(1.0, 0.1))
    names = [f"loop{number}" for number in range(4)] + [f"x{number}" for number in range(4)]
    rig.add(*(request(name, num_prompt=4, num_output=50) for name in names))
    rig.run()
    for job in rig.jobs:
        if job.rows.drafts is not None and not (job.rows.drafts.counts > 0).all():
            num_drafts = int(job.rows.drafts.counts.sum())
            step_s = rig.line.seconds(len(job.rows), 0.0)
            assert num_drafts * 0.1 <= 0.25 * step_s * 1.1  # costs are measured on the way


def test_batch_requests_have_drafts_too() -> None:
    rig = of_one(FORCED)
    asked = request("loop", num_prompt=6, num_output=40, service_class=ServiceClass.BATCH)
    rig.add(asked)
    rig.run().check_outputs([asked])
    assert counts_of(rig)[1] > 0
