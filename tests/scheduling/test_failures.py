"""Failed jobs: suspects run alone, the guilty are refused, nobody else is harmed."""

import math
import random
from collections.abc import Callable, Mapping, Sequence

import pytest

from muxcluster.core.events import Finished, FinishReason
from muxcluster.core.job import Job, Phase
from muxcluster.core.request import Request
from muxcluster.scheduling.state.suspicion import MAX_ROWS_ONE_BY_ONE
from tests.amounts import examples
from tests.scheduling.rig import SOME_LANES, Rig, model_spec, request, unit_spec


def is_poisoned(rig: Rig, job: Job, phases: frozenset[Phase] = frozenset(Phase)) -> bool:
    """True where a request whose name says so is in `job`, which runs one of `phases`."""
    names = {
        rig.scheduler._models[job.model].running.request_ids[s]
        for s in job.rows.table_rows.tolist()
    }
    return job.phase in phases and any("poison" in name for name in names)


def run_with_poison(rig: Rig, is_fatal: Callable[[Job], bool], *, kills_owner: bool = False) -> int:
    """To the end of all requests; how many jobs failed or owners were lost."""
    num_losses = 0
    while rig.num_open:
        rig.launch()
        fatal = [job for _, job in rig.running if is_fatal(job)]
        if not fatal:
            rig.finish()
            continue
        num_losses += 1
        assert num_losses < 100, "the guilty are never found"
        if kills_owner:
            rig.reset()
        else:
            rig.fail(fatal[0])
    return num_losses


def poison_end(rig: Rig, name: str = "poison") -> Finished:
    end = rig.ends[name]
    assert isinstance(end, Finished)
    assert (end.reason, end.code) == (FinishReason.ERROR, "poison_request")
    assert "poison request" in end.message
    return end


@pytest.mark.parametrize("lane", SOME_LANES)
@pytest.mark.parametrize(
    "phases", [frozenset(Phase), frozenset({Phase.DECODE, Phase.MIXED})], ids=["any", "decode"]
)
def test_a_poisonous_request_takes_nobody_with_it(lane: str, phases: frozenset[Phase]) -> None:
    rig = Rig(unit_spec(lane=lane))
    good = [request(f"good {i}", "aab"[i % 3], num_output=12) for i in range(6)]
    rig.add(*good[:3], request("poison", num_output=20), *good[3:])
    num_losses = run_with_poison(rig, lambda job: is_poisoned(rig, job, phases))
    assert num_losses <= 3
    assert "the test failed it" in poison_end(rig).message
    rig.check_outputs(good)
    rig.check_empty()


def test_a_lone_request_is_refused_at_its_second_kill() -> None:
    rig = Rig(unit_spec())
    rig.add(request("poison"))
    assert run_with_poison(rig, lambda job: True) == 2
    poison_end(rig)
    assert rig.launch() == []
    rig.check_empty()


def test_many_poisonous_requests_are_all_found() -> None:
    rig = Rig(unit_spec())
    good = [request(f"good {i}") for i in range(4)]
    rig.add(*(request(f"poison {i}", "ab"[i % 2]) for i in range(5)), *good)
    run_with_poison(rig, lambda job: is_poisoned(rig, job))
    for i in range(5):
        poison_end(rig, f"poison {i}")
    rig.check_outputs(good)


@pytest.mark.parametrize("lane", SOME_LANES)
def test_a_request_that_kills_the_owner_is_found_and_harms_nobody(lane: str) -> None:
    """Jobs of other requests run beside its own when the owner goes."""
    rig = Rig(unit_spec(lane=lane))
    good = [request(f"good {i}", "abc"[i % 3], num_output=12) for i in range(6)]
    rig.add(*good[:3], request("poison"), *good[3:])
    num_losses = run_with_poison(rig, lambda job: is_poisoned(rig, job), kills_owner=True)
    assert num_losses <= 3
    poison_end(rig)
    rig.check_outputs(good)
    rig.check_empty()


def test_after_a_lost_owner_prompts_that_had_run_are_computed_in_company() -> None:
    """Suspected of a decode step, they run alone in one again, but not in their prefills."""
    rig = Rig(unit_spec(lane="temporal", token_budget=200))
    asked = [request(f"r{i}", num_output=30) for i in range(5)]
    rig.add(*asked)
    while not (rig.running and rig.running[0][1].phase is Phase.DECODE):
        rig.step()
        rig.launch()
    rig.reset()
    first = len(rig.jobs)
    rig.run()
    phases = [(job.phase, len(job.rows)) for job in rig.jobs[first:]]
    assert phases[0] == (Phase.PREFILL, 5)
    assert phases[1:6] == [(Phase.DECODE, 1)] * 5
    assert phases[6] == (Phase.DECODE, 5)
    rig.check_outputs(asked)


@pytest.mark.parametrize("lane", SOME_LANES)
@pytest.mark.parametrize("kills_owner", [False, True], ids=["worker", "owner"])
def test_recomputing_its_prompt_does_not_clear_a_request_that_fails_when_it_decodes(
    lane: str, kills_owner: bool
) -> None:
    """Its prompt runs in jobs of the same phase where the lane mixes prompts and decodes."""
    rig = Rig(unit_spec(lane=lane, token_budget=200))
    good = [request(f"good {i}", "aab"[i % 3], num_output=12) for i in range(6)]
    rig.add(*good[:3], request("poison", num_output=90), *good[3:])

    def is_fatal(job: Job) -> bool:
        ids = rig.scheduler._models[job.model].running.request_ids
        rows = zip(job.rows.table_rows.tolist(), job.rows.counts.tolist(), strict=True)
        # Its prompt, and later its output too, are computed in one chunk of several tokens.
        return any(ids[row] == "poison" and count == 1 for row, count in rows)

    assert run_with_poison(rig, is_fatal, kills_owner=kills_owner) <= 3
    poison_end(rig)
    rig.check_outputs(good)
    rig.check_empty()


@pytest.mark.parametrize("lane", SOME_LANES)
def test_suspects_run_alone_and_then_together_again(lane: str) -> None:
    rig = Rig(unit_spec(lane=lane))
    asked = [request(f"r{i}", num_output=30) for i in range(4)]
    rig.add(*asked)
    while not (rig.running and len(rig.running[0][1].rows) == 4):
        rig.step()
        rig.launch()
    failed = rig.running[0][1]
    rig.fail()
    num_before = len(rig.jobs)
    rig.run()
    after = rig.jobs[num_before:]
    assert [len(job.rows) for job in after[:4]] == [1, 1, 1, 1]
    assert {job.phase for job in after[:4]} == {failed.phase}  # nothing is computed twice
    assert len(after[4].rows) == 4
    rig.check_outputs(asked)


def test_a_long_prompt_stays_a_suspect_until_the_chunk_that_failed_ran() -> None:
    rig = Rig(unit_spec(token_budget=8))
    rig.add(request("long", num_prompt=30), request("other", num_prompt=4))
    rig.step()
    for _ in range(2):
        rig.launch()
        rig.finish(0)
    rig.launch()
    chunk = next(job for _, job in rig.running if job.phase is Phase.PREFILL)
    assert chunk.rows.starts[0] == 24
    rig.fail(chunk)
    rig.launch()
    (again,) = (job for _, job in rig.running if job.phase is Phase.PREFILL)
    assert (len(again.rows), again.rows.starts[0]) == (1, 24)
    rig.run()
    assert {end.reason for end in rig.ends.values()} == {FinishReason.LENGTH}


def failed_alone_before(rig: Rig, job: Job) -> bool:
    lives = [
        rig.scheduler._models[job.model].running.at(row) for row in job.rows.table_rows.tolist()
    ]
    return any(live.suspicion is not None and live.suspicion.num_lone_failures for live in lives)


@pytest.mark.parametrize("lane", SOME_LANES)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))]
)
def test_workers_killed_at_random_end_nobody(lane: str, seed: int) -> None:
    """16 requests, many kills, but none that hits a request alone for the second time in a row."""
    rng = random.Random(seed)
    rig = Rig(unit_spec(lane=lane, num_blocks=rng.choice((90, 200))), seed)
    asked = [request(f"{i}", "aab"[i % 3], num_output=20) for i in range(16)]
    rig.add(*asked)
    num_kills = 0
    while rig.num_open:
        rig.launch()
        if rng.random() < 0.2 and not failed_alone_before(rig, rig.running[0][1]):
            rig.fail()
            num_kills += 1
        else:
            rig.finish()
    assert num_kills > 10
    rig.check_outputs(asked)
    rig.check_empty()


def test_a_success_forgives() -> None:
    rig = Rig(unit_spec())
    asked = request("r", num_output=20)
    rig.add(asked)
    for _ in range(8):
        rig.launch()
        rig.fail()
        rig.launch()
        rig.finish()
    rig.run()
    rig.check_outputs([asked])


def test_after_the_loss_of_an_owner_one_job_runs_at_a_time() -> None:
    rig = Rig(unit_spec())
    asked = [request(f"{model}{i}", model, num_output=20) for model in "abc" for i in range(2)]
    rig.add(*asked)
    while len(rig.running) < 2:
        rig.step()
        rig.launch()
    rig.reset()
    suspects = {name for name, live in rig.scheduler._live.items() if live.suspicion}
    assert suspects
    while any(rig.scheduler._live[name].suspicion for name in suspects & set(rig.scheduler._live)):
        rig.launch()
        assert len(rig.running) == 1
        rig.finish()
    while len(rig.running) < 2:
        rig.step()
        rig.launch()
    rig.run()
    rig.check_outputs(asked)


def test_a_job_that_never_started_convicts_nobody() -> None:
    rig = Rig(unit_spec())
    asked = request("r")
    rig.add(asked)
    for _ in range(5):
        (job,) = rig.launch()
        rig.running.clear()
        rig.take(rig.scheduler.fail(job, rig.now, has_started=False))
    rig.run()
    rig.check_outputs([asked])


def many_rows(lane: str, num_rows: int, **policy) -> Rig:
    """A rig with room for so many sequences of one model, in one job."""
    model = model_spec("a", max_seqs=num_rows, prefix_caching=False)
    spec = unit_spec((model,), num_blocks=40 * num_rows, lane=lane, token_budget=2000, **policy)
    return Rig(spec)


def run_until_all_decode(rig: Rig, num_rows: int) -> Job:
    """The job in which all of them decode, which runs."""
    while True:
        rig.launch()
        for _, job in rig.running:
            if len(job.rows) == num_rows and (job.rows.counts == 1).all():
                return job
        rig.finish()


def most_kills(num_rows: int) -> int:
    """Until the guilty one of a decode job of so many rows has ended."""
    return 3 + max(0, math.ceil(math.log2(num_rows / MAX_ROWS_ONE_BY_ONE)))


@pytest.mark.parametrize("whose", ["worker", "owner"])
@pytest.mark.parametrize("lane", SOME_LANES)
def test_a_stray_kill_delays_many_innocents_by_few_steps(lane: str, whose: str) -> None:
    """64 streams, whose suspects run in two halves instead of one by one."""
    rig = many_rows(lane, 64)
    asked = [request(f"r{i}", num_output=30) for i in range(64)]
    rig.add(*asked)
    job = run_until_all_decode(rig, 64)
    if whose == "owner":
        rig.reset()
    else:
        rig.fail(job)
    first = len(rig.jobs)
    run_until_all_decode(rig, 64)
    steps = [
        len(job.rows)
        for job in rig.jobs[first:-1]
        if job.phase is not Phase.PREFILL and (job.rows.counts == 1).all()
    ]
    assert sum(steps) == 64
    assert len(steps) <= 3
    rig.run()
    rig.check_outputs(asked)
    rig.check_empty()


def guilty_in(rig: Rig, job: Job, first_fatal: Mapping[str, int]) -> list[str]:
    """Those in `job` that have so many tokens that they kill whatever computes more of them."""
    ids = rig.scheduler._models[job.model].running.request_ids
    names = [ids[row] for row in job.rows.table_rows.tolist()]
    return [n for n in names if n in first_fatal and len(rig.tokens[n]) >= first_fatal[n]]


def run_with_guilty(
    rng: random.Random,
    rig: Rig,
    asked: Sequence[Request],
    first_fatal: Mapping[str, int],
    *,
    kills_owner: bool,
) -> dict[str, list[int]]:
    """To the end of all requests, which come at any time; the rows of the jobs that each killed."""
    kills: dict[str, list[int]] = {name: [] for name in first_fatal}
    coming = list(asked)
    while rig.num_open or coming:
        for _ in range(rng.choice((0, 0, 1, 40))):
            if coming:
                rig.add(coming.pop())
        rig.launch()
        if not rig.running:
            continue
        job = rig.running[0][1]
        guilty = guilty_in(rig, job, first_fatal)
        for name in guilty:
            kills[name].append(len(job.rows))
        if not guilty:
            rig.finish()
        elif kills_owner:
            rig.reset()
        else:
            rig.fail(job)
    return kills


@pytest.mark.parametrize("kills_owner", [False, True], ids=["worker", "owner"])
@pytest.mark.parametrize("lane", SOME_LANES)
def test_the_guilty_among_many_convict_themselves_and_no_innocent_ends(
    lane: str, kills_owner: bool
) -> None:
    """One or two requests kill from some token on, alone in the last two of few jobs."""
    for seed in range(examples(1, 4)):
        rng = random.Random(f"{lane} {seed} {kills_owner}")
        rig = many_rows(lane, 64, max_decode_rows=rng.choice((20, 256)))
        good = [request(f"good {i}", num_output=rng.randint(1, 20)) for i in range(60)]
        good = good[: rng.randint(6, 60)]
        first_fatal = {f"poison {i}": rng.randint(0, 12) for i in range(rng.choice((1, 1, 2)))}
        asked = good + [request(name, num_output=25) for name in first_fatal]
        rng.shuffle(asked)
        kills = run_with_guilty(rng, rig, asked, first_fatal, kills_owner=kills_owner)
        for name, sizes in kills.items():
            poison_end(rig, name)
            assert sizes[-2:] == [1, 1]
            # After the loss of an owner prompts are computed again in company, and may fail there.
            assert len(sizes) <= most_kills(max(sizes)) + kills_owner
        rig.check_outputs(good)
        rig.check_empty()


def test_suspects_of_a_long_job_are_halved_until_they_run_alone() -> None:
    rig = many_rows("temporal", 64)
    rig.add(*(request(f"r{i}", num_output=30) for i in range(63)), request("poison", num_output=30))
    sizes, num_losses = [], 0
    while rig.num_open:
        rig.launch()
        job = rig.running[0][1]
        if job.phase is Phase.DECODE and is_poisoned(rig, job):
            sizes.append(len(job.rows))
            num_losses += 1
            rig.fail(job)
        else:
            rig.finish()
    poison_end(rig)
    assert sizes == [64, 32, 16, 8, 1, 1]
    assert num_losses == most_kills(64)
