"""Random runs of units whose weights do not fit together: arrivals, aborts, failures, losses."""

import random
from collections.abc import Sequence

import pytest

from muxcluster.core.events import FinishReason
from muxcluster.core.request import Request, ServiceClass, Slo
from muxcluster.core.residency import MoveKind, Residency
from muxcluster.core.unitspec import UnitSpec
from muxcluster.scheduling.residency.moves import WeightMoves
from muxcluster.scheduling.residency.policy import ByDeadline
from muxcluster.scheduling.shares import ShareLedger
from tests.scheduling.residency.world import (
    NAMES,
    PARK_S,
    SPREAD,
    WAKE_S,
    TightRig,
    tight_spec,
    weighed,
)
from tests.scheduling.rig import LANES, expected_output, request

RUNS, MANY_RUNS, PARTS = 40, 10_000, 100  # a part takes ten seconds alone
PACKINGS = ("fcfs", "priority", "hybrid")
AGEING_S = 2.0


def random_spec(rng: random.Random) -> UnitSpec:
    """Two to five models of random sizes, room for the largest at least."""
    sizes = [rng.randint(1, 4) for _ in range(rng.randint(2, 5))]
    kinds = [rng.choice((Residency.AUTO, Residency.ON_DEMAND)) for _ in sizes]
    room = rng.randint(max(sizes), sum(sizes))
    if rng.random() < 0.3 and sizes[0] + max(sizes[1:]) <= room:
        kinds[0] = Residency.ALWAYS
    models = [
        weighed(
            name,
            size,
            max_seqs=3,
            residency=kind,
            wake_s=rng.choice((0.0, WAKE_S)),
            rate_per_s=rng.choice((0.0, 1.0, 5.0)),
            slo=rng.choice((None, Slo(0.5, 0.2))),
        )
        for name, size, kind in zip(NAMES, sizes, kinds, strict=False)
    ]
    packing = rng.choice(PACKINGS)
    return tight_spec(
        models,
        room,
        lane=rng.choice(LANES),
        packing=packing,
        pipeline_depth=rng.choice((1, 2)),
        num_blocks=len(models) * rng.choice((20, 28)),
        num_host_blocks=rng.choice((0, 40)) if packing == "hybrid" else 0,
        wakes=rng.choice(("deadline", "deadline", "foresight")),
        ageing_s=AGEING_S,
    )


def random_request(rng: random.Random, name: str, num_models: int) -> Request:
    return request(
        name,
        rng.choice(NAMES[:num_models]),
        num_prompt=rng.choice((1, 10, 24)),
        num_output=rng.choice((1, 4, 9)),
        service_class=rng.choice((*ServiceClass, ServiceClass.INTERACTIVE)),
        slo=rng.choice((None, Slo(0.1, 0.2))),
        priority=rng.choice((0, 0, 1)),
    )


def random_step(rng: random.Random, rig: TightRig, asked: Sequence[Request]) -> None:
    """One thing that may happen to a unit."""
    draw = rng.random()
    if draw < 0.01:
        rig.lose(rng.choice(rig.spec.models).name)
    elif draw < 0.015:
        rig.reset()
    elif draw < 0.03 and rig.running:
        rig.fail()
    elif draw < 0.04:
        rig.abort(rng.choice(asked).request_id)
    elif draw < 0.1 and rig.moving:
        rig.end_move(fails=True, is_final=True)
    else:
        rig.step()


def random_run(seed: int) -> TightRig:
    """To the end of every request; the rig checks after every step."""
    rng = random.Random(f"{seed}")
    spec = random_spec(rng)
    rig = TightRig(spec, seed, failing=rng.choice((0.0, 0.0, 0.3)))
    num_models = len(spec.models)
    asked = [random_request(rng, f"{seed}-{i}", num_models) for i in range(rng.randint(1, 9))]
    coming, num_steps = list(asked), 0
    while coming or rig.num_open:
        num_steps += 1
        assert num_steps < 5000, f"{rig.num_open} requests never end"
        if coming and rng.random() < 0.3:
            rig.add(coming.pop())
        else:
            random_step(rng, rig, asked)
    rig.settle()  # a model that must always be resident wakes without requests
    rig.check_empty()
    check_ends(rig, asked)
    return rig


def check_ends(rig: TightRig, asked: Sequence[Request]) -> None:
    """All ended, with the tokens that they must get."""
    assert set(rig.ends) == {each.request_id for each in asked}
    for each in asked:
        end, got = rig.ends[each.request_id], rig.tokens[each.request_id]
        output = expected_output(each)
        is_whole = end.reason in (FinishReason.STOP, FinishReason.LENGTH)
        assert got == output if is_whole else output[: len(got)] == got
        assert -1e-9 <= end.waking_s <= end.queue_s + end.preempted_s + 1e-9


def test_every_request_ends_once_whatever_happens() -> None:
    rigs = [random_run(seed) for seed in range(RUNS)]
    ends = [end for rig in rigs for end in rig.ends.values()]
    reasons = {end.reason for end in ends}
    assert reasons == {FinishReason.LENGTH, FinishReason.ABORT, FinishReason.ERROR}
    assert "model_failed" in {end.code for end in ends}
    kinds = [move.kind for rig in rigs for _, move in rig.moves]
    assert kinds.count(MoveKind.PARK) > RUNS / 2
    assert any(end.num_preemptions for end in ends)
    assert any(end.waking_s > 0 for end in ends)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_many_random_runs_end(part: int) -> None:
    size = MANY_RUNS // PARTS
    for seed in range(RUNS + part * size, RUNS + (part + 1) * size):
        random_run(seed)


# Starvation

NUM_MODELS = 4
LONGEST_JOB_S = 0.2  # about twice what the rig's longest jobs take here
NO_TARGET_S = 10.0
LEAST_STAY_S, STAY_WAKES, DRAIN_WAKES = 0.5, 2, 0.5


def longest_wait_s(target_s: float) -> float:
    """What the policy promises, worked out from its rules: see `residency/policy.py`.

    A token comes within the least stay here, so a model is kept for that and no longer.
    """
    wake_s = (1 + SPREAD) * WAKE_S
    keeps_s = max(LEAST_STAY_S, STAY_WAKES * wake_s)
    turn_s = wake_s + keeps_s + DRAIN_WAKES * wake_s + 2 * LONGEST_JOB_S
    turn_s += (NUM_MODELS * PARK_S) * (1 + SPREAD) + wake_s
    return target_s + (NUM_MODELS + 1) * turn_s


def crowded_run(seed: int, until_s: float = 30.0, *, lane: str = "mixed") -> TightRig:
    """More requests than can be served, each for a model by a skewed popularity.

    Of four models with room for one to three at a time, the first two have tight targets.
    """
    rng = random.Random(seed)
    targets: Sequence[Slo | None] = (Slo(0.05, 0.1), Slo(0.2, 0.1), None, None)
    sizes = [rng.randint(1, 2) for _ in range(NUM_MODELS)]
    models = [
        weighed(name, size, slo=slo, rate_per_s=rng.choice((0.1, 5.0)), max_seqs=4)
        for name, size, slo in zip(NAMES, sizes, targets, strict=False)
    ]
    spec = tight_spec(models, rng.randint(2, 3), ageing_s=AGEING_S, num_blocks=160, lane=lane)
    rig = TightRig(spec, seed, checks=False)
    weights = rng.choice(((8, 8, 2, 1), (1, 1, 1, 1), (20, 10, 0.2, 0.2)))
    start_s, index, next_s = rig.now, 0, rig.now
    while rig.now < start_s + until_s:
        while next_s <= rig.now:
            model = rng.choices(NAMES[:NUM_MODELS], weights)[0]
            kind = ServiceClass.BATCH if rng.random() < 0.2 else ServiceClass.INTERACTIVE
            rig.add(request(f"{index}", model, num_output=rng.randint(1, 30), service_class=kind))
            index += 1
            next_s += rng.expovariate(12.0)
        rig.step()
    return rig


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_no_waiting_model_waits_longer_than_the_policy_promises(seed: int) -> None:
    rig = crowded_run(seed)
    for model in rig.spec.models:
        target_s = NO_TARGET_S if model.slo is None else model.slo.ttft_s
        limit_s = longest_wait_s(max(target_s, AGEING_S))
        assert rig.longest_wait_s[model.name] <= limit_s
    assert len({move.model for _, move in rig.moves}) >= NUM_MODELS - 1


# Planted faults: the tests above find them.


def test_a_policy_that_forgets_the_least_stay_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ByDeadline, "keeps_s", lambda self, wake_s, *, has_token: 0.0)
    with pytest.raises(AssertionError, match="stayed for"):
        for seed in range(RUNS):
            random_run(seed)


def test_a_policy_that_serves_short_targets_first_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_target(claim, now: float):
        return claim.target_s

    monkeypatch.setattr("muxcluster.scheduling.residency.policy._order", by_target)
    wait_s = crowded_run(0).longest_wait_s
    assert max(wait_s["c"], wait_s["d"]) > longest_wait_s(NO_TARGET_S)


def test_parking_a_model_whose_job_runs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(ShareLedger):
        """Shows nothing that runs to who moves weights."""

        running = ()

    def begin(self, *arguments, _real=WeightMoves._move_for):
        shares, self._shares = self._shares, Forgetful(())
        try:
            return _real(self, *arguments)
        finally:
            self._shares = shares

    monkeypatch.setattr(WeightMoves, "_move_for", begin)
    with pytest.raises(AssertionError, match="a job still runs"):
        crowded_run(2, lane="adbs")
