"""Batch sequences alone that outgrow the pool: juniors wait in host memory and lose no work."""

import random
from dataclasses import replace

import pytest

from muxcluster.core.job import WorkerSpec
from muxcluster.core.request import ServiceClass
from muxcluster.scheduling.memory.lending import Swapping
from tests.amounts import examples, slow
from tests.scheduling.rig import Rig, model_spec, request, unit_spec
from tests.scheduling.test_hybrid import copied
from tests.scheduling.test_random_runs import WORKERS, check_ends, random_request, run_to_the_end

BATCH = ServiceClass.BATCH
ONE_WORKER = (WorkerSpec(0, (1.0,)),)
LANES_OF_ONE_WORKER = ["mixed", *slow("temporal"), "adbs"]


def overload(
    lane: str = "mixed", *, killed: str = "", num_host_blocks: int = 400, packing: str = "hybrid"
) -> tuple[Rig, set[str]]:
    """Requests of both models that are let in together and grow until the pool is full."""
    rig = Rig(
        unit_spec(
            (model_spec("a", max_seqs=12), model_spec("b", max_seqs=12)),
            num_blocks=64,
            num_host_blocks=num_host_blocks,
            workers=ONE_WORKER,
            lane=lane,
            packing=packing,
        )
    )
    asked = [
        request(f"{model}{i}", model, num_prompt=17, num_output=60, service_class=BATCH)
        for i in range(6)
        for model in "ab"
    ]
    rig.add(*asked)
    hit = rig.run_failing(killed)
    rig.check_outputs(asked)
    rig.check_empty()
    return rig, hit


def recomputed(rig: Rig) -> int:
    return sum(each.num_recomputed_tokens for each in rig.scheduler.stats(rig.now, "unit").models)


@pytest.mark.parametrize("packing", ["hybrid", "additive"])
@pytest.mark.parametrize("lane", LANES_OF_ONE_WORKER)
def test_an_overload_recomputes_nothing_while_host_memory_lasts(lane: str, packing: str) -> None:
    rig, _ = overload(lane, packing=packing)
    saved, restored = copied(rig.jobs)
    assert saved >= restored > 50
    assert recomputed(rig) == 0
    assert not rig.preempted


@pytest.mark.parametrize("num_host_blocks", [0, 4, 8])
def test_with_little_host_memory_some_are_recomputed_and_all_end(num_host_blocks: int) -> None:
    rig, _ = overload(num_host_blocks=num_host_blocks)
    assert rig.preempted
    assert recomputed(rig) > 0


@pytest.mark.parametrize("killed", ["saves", "restores"])
@pytest.mark.parametrize("lane", LANES_OF_ONE_WORKER)
def test_a_worker_killed_while_it_copies_loses_nothing(lane: str, killed: str) -> None:
    rig, hit = overload(lane, killed=killed)
    assert len(hit) >= 2
    if killed == "saves":
        assert recomputed(rig) > 0, "what was half saved is known to nobody"


def test_the_most_senior_never_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does anybody more senior than the sequences that get room."""
    swapped: list[int] = []
    make_room = Swapping._make_room

    def watched(self, model, row, lack, job_id, now):
        ranks = [each.running.seniority for each in self._models]
        before = [each.running.is_lent.copy() for each in self._models]
        saves = make_room(self, model, row, lack, job_id, now)
        for each, had_lent, rank in zip(self._models, before, ranks, strict=True):
            gave = rank[each.running.is_lent & ~had_lent]
            assert (gave > model.running.seniority[row]).all()
            swapped.append(len(gave))
        return saves

    monkeypatch.setattr(Swapping, "_make_room", watched)
    overload("temporal")
    assert sum(swapped) > 0


def random_run(lane: str, seed: int) -> Rig:
    """Batch requests, and a few interactive ones, in a tiny pool."""
    rng = random.Random(f"batch {lane} {seed}")
    spec = unit_spec(
        lane=lane,
        packing=rng.choice(("hybrid", "additive")),
        num_blocks=rng.choice((60, 90, 121)),
        num_host_blocks=rng.choice((12, 400)),
        workers=rng.choice(WORKERS),
        token_budget=rng.choice((16, 64)),
        max_decode_rows=rng.choice((2, 256)),
    )
    rig, part = Rig(spec, seed), rng.choice((0.0, 0.2))
    waiting = []
    for i in range(16):
        drawn = random_request(rng, f"{seed}-{i}")
        service = ServiceClass.INTERACTIVE if rng.random() < part else BATCH
        sampling = replace(drawn.sampling, max_tokens=30, ignore_eos=True, stop_token_ids=())
        waiting.append(replace(drawn, service_class=service, sampling=sampling))
    asked = run_to_the_end(rng, rig, waiting)
    check_ends(rig, asked)
    return rig


@pytest.mark.parametrize("lane", ["adbs", "mixed", *slow("temporal", "round-robin")])
def test_random_runs_end_and_swap(lane: str, monkeypatch: pytest.MonkeyPatch) -> None:
    swapped: list[int] = []
    swap_out = Swapping._swap_out

    def noted(self, rank, blocks, job_id):
        copies = swap_out(self, rank, blocks, job_id)
        swapped.append(len(copies))
        return copies

    monkeypatch.setattr(Swapping, "_swap_out", noted)
    for seed in range(examples(4, 5)):
        random_run(lane, seed)
    assert sum(swapped) > 0
