"""A parked model keeps no part of the KV pool, and has its floor again when it wakes."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from muxcluster.core.events import FinishReason
from muxcluster.core.kvshape import KvShape, block_bytes
from muxcluster.core.request import ServiceClass
from muxcluster.core.residency import Residency, WeightOrder
from muxcluster.kvcache.cache import KvCache
from muxcluster.kvcache.model import KvModel
from muxcluster.scheduling.memory.quotas import QuotaBalancer, floors, split
from muxcluster.scheduling.state.model import ModelState
from tests.scheduling.residency.world import TightRig, tight_spec, weighed
from tests.scheduling.rig import request
from tests.scheduling.test_quotas import state

FLOOR = 32  # blocks of one sequence of 64 tokens: 8 columns of 4 blocks


def rig_of(num_blocks: int, *models, room: int, **policy) -> TightRig:
    return TightRig(tight_spec(models, room, num_blocks=num_blocks, **policy))


def run_until_awake(rig: TightRig, model: str) -> None:
    while model not in rig.resident or rig.moving:
        rig.step()


def test_the_pool_belongs_to_those_that_are_awake() -> None:
    rig = rig_of(100, weighed("a", rate_per_s=3.0), weighed("b"), room=1)
    assert rig.quotas() == {"a": 100, "b": 0}
    rig.add(request("1", "b"))
    run_until_awake(rig, "b")
    assert rig.quotas() == {"a": 0, "b": 100}
    rig.run()


def test_a_floor_is_given_back_while_the_weights_are_on_their_way() -> None:
    rig = rig_of(100, weighed("a", rate_per_s=3.0), weighed("b"), room=2)
    rig.order("b", WeightOrder.HOLD)
    rig.settle()
    assert rig.quotas() == {"a": 100, "b": 0}
    rig.order("b", WeightOrder.WAKE)
    rig.launch()
    assert rig.moving
    found = rig.quotas()
    assert found["b"] >= FLOOR and found["a"] >= FLOOR and sum(found.values()) <= 100


def test_a_woken_model_gets_its_floor_though_others_hold_the_whole_pool() -> None:
    """Nine sequences of a, which run on for long, hold all blocks when b is asked for."""
    rig = rig_of(72, weighed("a", rate_per_s=3.0, max_seqs=9), weighed("b"), room=2)
    rig.order("b", WeightOrder.PARK)
    rig.settle()
    rig.add(*(request(f"a{i}", "a", num_prompt=10, num_output=54) for i in range(9)))
    while rig.scheduler.stats(rig.now, "u").models[0].used_blocks < 72:
        rig.step()
    rig.add(request("b", "b", num_prompt=24, num_output=9))
    run_until_awake(rig, "b")
    for _ in range(4):
        rig.step()
    assert rig.quotas()["b"] >= FLOOR
    assert any(name.startswith("a") for name in rig.preempted)
    rig.run()
    assert rig.end_s["b"] < max(rig.end_s.values()), "b did not wait for the end of all others"
    assert {end.reason for end in rig.ends.values()} == {FinishReason.LENGTH}


def test_batch_work_of_a_woken_model_interrupts_nobody() -> None:
    rig = rig_of(72, weighed("a", rate_per_s=3.0, max_seqs=9), weighed("b"), room=2)
    rig.order("b", WeightOrder.PARK)
    rig.settle()
    rig.add(*(request(f"a{i}", "a", num_prompt=7, num_output=1) for i in range(9)))
    rig.add(request("b", "b", num_prompt=24, service_class=ServiceClass.BATCH))
    rig.run()
    assert not rig.preempted


def test_only_floors_of_models_that_fit_together_share_a_small_pool() -> None:
    """Ten models of one byte each, room for two: each can carry half the pool."""
    names = "abcdefghij"
    models = [state(name) for name in names]
    for model in models:
        model.spec = weighed(model.name, residency=Residency.ON_DEMAND)
    assert set(floors(models, 64, 2).values()) == {FLOOR}
    assert set(floors(models, 64, 0).values()) == {4}
    models[0].spec = weighed("a", residency=Residency.ALWAYS)
    assert set(floors(models, 64, 2).values()) == {FLOOR}
    assert set(floors(models, 48, 2).values()) == {24}


def test_a_request_that_fits_beside_those_resident_with_it_is_accepted() -> None:
    models = [weighed(name, residency=Residency.ON_DEMAND) for name in "abcd"]
    rig = rig_of(64, *models, room=2)
    rig.add(request("1", "d", num_prompt=24, num_output=40))  # 8 columns, the floor
    rig.run()
    assert rig.ends["1"].reason is FinishReason.LENGTH


# A balancer with random models awake, rows that come and go, and a check after each step


def balancer(models: Sequence[ModelState], num_blocks: int) -> tuple[QuotaBalancer, KvCache]:
    kv_models = [KvModel(m.name, m.spec.shape, 6, 64) for m in models]
    least = floors(models, num_blocks)
    quotas = split(models, dict.fromkeys(least, 1.0), least, num_blocks)
    kv = KvCache(num_blocks, block_bytes(8, 2), kv_models, quotas)
    for model in models:
        model.kv = kv.of(model.name)
    return QuotaBalancer(kv, models, least), kv


@pytest.mark.parametrize("seed", range(8))
def test_quotas_follow_whoever_is_awake(seed: int) -> None:
    rng = random.Random(seed)
    shapes = [KvShape(rng.randint(1, 3), 2, 128, 2) for _ in range(4)]
    models = [
        state(name, shape.num_layers, rng.choice((0.0, 0.1, 4.0)))
        for name, shape in zip("abcd", shapes, strict=True)
    ]
    moves, kv = balancer(models, rng.choice((160, 260)))
    rows: dict[str, set[int]] = {model.name: set() for model in models}
    awake = set(rows)
    for _ in range(300):
        model = rng.choice(models)
        mine, draw = rows[model.name], rng.random()
        if draw < 0.15:  # it falls asleep, its rows preempted before, or it wakes
            for row in mine:
                model.kv.close(row)
            mine.clear()
            awake ^= {model.name}
            moves.follow(awake)
        elif draw < 0.25:
            model.is_short = True
            moves.adapt()
        elif draw < 0.5 and mine:
            model.kv.close(mine.pop())
        elif model.name in awake and len(mine) < 6:
            row = min(set(range(6)) - mine)
            model.kv.open(row, [])
            mine.add(row)
            model.kv.grow(np.array([row], np.int32), np.array([rng.randint(1, 64)], np.int32))
        moves.settle()
        moves.check()
        kv.check()
    assert len(awake) < 4 or not moves.is_settled or sum(m.kv.quota for m in models) > 0


def test_a_model_that_stays_keeps_its_proportion_and_a_nap_changes_nothing() -> None:
    models = [state("a", rate=2.0), state("b", rate=1.0), state("c", rate=1.0)]
    moves, kv = balancer(models, 400)
    moves.follow("ab")
    before = {name: kv.of(name).quota for name in "ab"}
    assert before["a"] == pytest.approx(200, abs=8) and before["b"] == pytest.approx(200, abs=8)
    for _ in range(5):
        moves.follow("a")
        assert (kv.of("a").quota, kv.of("b").quota) == (400, 0)
        moves.follow("ab")
        moves.check()
    # b slept, so its part is by its demand beside a's: a third
    assert kv.of("b").quota == pytest.approx(400 / 3, abs=8)
