"""Quotas: floors, the initial split, and their adaptation to measured use."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.core.kvshape import KvShape, block_bytes
from muxcluster.core.unitspec import ModelSpec
from muxcluster.kvcache.cache import KvCache
from muxcluster.kvcache.model import KvModel
from muxcluster.scheduling.memory.quotas import QuotaBalancer, floors, split, weights
from muxcluster.scheduling.state.model import Held, LoadMeter, ModelState
from tests.scheduling.rig import model_spec


def state(name: str, layers: int = 2, rate: float = 1.0, max_model_len: int = 64) -> ModelState:
    shape = KvShape(num_layers=layers, num_kv_heads=2, head_dim=128, itemsize=2)
    spec = model_spec(name, shape=shape, max_model_len=max_model_len)
    return ModelState(spec, own_cache(spec).of(name), LoadMeter(rate, 24.0, 8.0, 1 / 8, 10.0))


def own_cache(spec: ModelSpec) -> KvCache:
    """A cache that serves this model alone."""
    kv_model = KvModel(spec.name, spec.shape, 6, spec.max_model_len)
    return KvCache(1000, block_bytes(8, 2), [kv_model], {})


def test_floor_is_one_sequence_of_full_length() -> None:
    models = [state("a"), state("b", layers=4)]
    assert floors(models, 1000) == {"a": 8 * 4, "b": 8 * 8}


def test_a_small_pool_is_split_into_whole_columns() -> None:
    models = [state("a"), state("b", layers=4)]
    assert floors(models, 60) == {"a": 20, "b": 40}
    with pytest.raises(ValueError, match="not one column of 'a'"):
        floors([state("a"), state("b", layers=4)], 8)


def test_split_follows_rate_times_size_times_length() -> None:
    models = [state("a", rate=3.0), state("b", layers=4)]
    assert weights(models) == {"a": 3.0 * 4 * 4, "b": 1.0 * 4 * 8}
    assert split(models, weights(models), {"a": 0, "b": 0}, 1000) == {"a": 600, "b": 400}


def test_requests_that_hold_memory_for_longer_need_more_of_it() -> None:
    models = [state("a"), state("b")]
    for model, held_s in zip(models, (2.0, 6.0), strict=True):
        for _ in range(500):
            model.meter.arrive()
            model.meter.end(24, Held(held_s, 8))
        model.meter.update(1.0, Held())
    assert split(models, weights(models), {"a": 0, "b": 0}, 1000) == {"a": 248, "b": 748}


LOADS = st.lists(st.tuples(st.integers(1, 5), st.floats(0, 1000)), min_size=1, max_size=6)


@given(LOADS, st.integers(0, 3000))
def test_split_keeps_floors_and_the_pool(loads, extra) -> None:
    models = [state(str(i), layers, rate) for i, (layers, rate) in enumerate(loads)]
    least = floors(models, 10_000)
    num_blocks = sum(least.values()) + extra
    quotas = split(models, weights(models), least, num_blocks)
    assert set(quotas) == set(least)
    assert sum(quotas.values()) <= num_blocks
    for model in models:
        assert quotas[model.name] >= least[model.name]
        assert quotas[model.name] % model.blocks_per_column == 0
    slack = sum(model.blocks_per_column for model in models)
    assert num_blocks - sum(quotas.values()) < slack


def balancer(models, quotas, num_blocks=400) -> tuple[QuotaBalancer, KvCache]:
    kv_models = [KvModel(m.name, m.spec.shape, 6, 64) for m in models]
    kv = KvCache(num_blocks, block_bytes(8, 2), kv_models, quotas)
    for model in models:
        model.kv = kv.of(model.name)
    return QuotaBalancer(kv, models, floors(models, num_blocks)), kv


def test_idle_blocks_move_to_the_model_that_lacks_some() -> None:
    models = [state("idle"), state("short")]
    moves, kv = balancer(models, {"idle": 300, "short": 100})
    models[1].is_short = True
    moves.adapt()
    moves.check()
    assert kv.of("idle").quota == 300 - 132
    assert kv.of("short").quota == 100 + 132
    moves.adapt()
    assert kv.of("short").quota == 232, "nobody is short any more: nothing moves"


def test_the_floor_is_never_given_away() -> None:
    models = [state("idle"), state("short")]
    moves, kv = balancer(models, {"idle": 300, "short": 100})
    for _ in range(40):
        models[1].is_short = True
        moves.adapt()
        moves.check()
    floor = floors(models, 400)["idle"]
    assert floor <= kv.of("idle").quota <= floor + 2 * models[0].blocks_per_column


def test_blocks_in_use_are_not_given() -> None:
    models = [state("busy"), state("short")]
    moves, kv = balancer(models, {"busy": 300, "short": 100})
    models[0].peak_blocks = 280
    models[1].is_short = True
    moves.adapt()
    assert kv.of("busy").quota == 292


@pytest.mark.parametrize(("rate", "wanted"), [(1.0, 200), (3.0, 300)])
def test_two_short_models_even_out_by_measured_rate(rate: float, wanted: int) -> None:
    models = [state("a", rate=rate), state("b")]
    moves, kv = balancer(models, {"a": 100, "b": 300})
    for _ in range(60):
        for model in models:
            model.is_short = True
            model.peak_blocks = kv.of(model.name).quota
        moves.adapt()
        moves.check()
    assert abs(kv.of("a").quota - wanted) <= 16


def test_a_lowered_quota_waits_for_its_sequences() -> None:
    models = [state("a", rate=3.0), state("b")]
    moves, kv = balancer(models, {"a": 100, "b": 300})
    rows = np.arange(6, dtype=np.int32)
    for row in rows.tolist():
        kv.of("b").open(row, [])
    kv.of("b").grow(rows, np.full(6, 64, dtype=np.int32))
    for _ in range(60):
        for model in models:
            model.is_short = True
        moves.adapt()
        moves.check()
    assert (kv.of("a").quota, kv.of("b").quota) == (400 - 192, 192)
    for row in (0, 1, 2):
        kv.of("b").close(row)
    moves.settle()
    moves.check()
    assert kv.of("b").quota == pytest.approx(100, abs=16)
    assert kv.of("a").quota == pytest.approx(300, abs=16)


def test_measured_rates_replace_planned_ones() -> None:
    meter = LoadMeter(50.0, 400.0, 100.0, 0.2, 10.0)
    assert (meter.mean_tokens, meter.mean_held_s) == (500.0, 20.0)
    for _ in range(20):
        meter.arrive()
    meter.update(5.0, Held())
    assert meter.rate_per_s == 4.0
    for _ in range(60):
        meter.arrive()
        meter.arrive()
        meter.end(90, Held(3.0, 10))
        meter.end(90, Held(3.0, 10))
        meter.update(1.0, Held())
    assert meter.rate_per_s == pytest.approx(2.0, abs=0.02)
    assert meter.mean_tokens == pytest.approx(100.0, rel=0.1)
    assert meter.mean_held_s == pytest.approx(3.0, rel=0.1)
    meter.update(1000.0, Held())
    assert meter.rate_per_s < 1e-3
    assert meter.mean_tokens == pytest.approx(100.0, rel=0.1)


def test_where_quotas_stay_as_planned_so_do_the_means() -> None:
    meter = LoadMeter(4.0, 20.0, 107.5, 0.05, math.inf)
    for _ in range(3):
        meter.arrive()
        meter.end(90, Held(3.0, 10))
        meter.update(1.0, Held())
        assert meter.mean_output_tokens == pytest.approx(107.5)
        assert meter.mean_tokens == pytest.approx(127.5)


def test_a_model_with_long_outputs_looks_no_smaller_before_they_end() -> None:
    """Every second 4 requests come: 3 with 10 tokens, 1 with 400; a token takes 0.1 s."""
    meter = LoadMeter(4.0, 20.0, 107.5, 0.05, 20.0)
    running: list[tuple[int, int]] = []  # second of arrival, output tokens
    for second in range(120):
        running += [(second, 10)] * 3 + [(second, 400)]
        for _ in range(4):
            meter.arrive()
        now = second + 1
        for began, tokens in [each for each in running if (now - each[0]) * 10 >= each[1]]:
            running.remove((began, tokens))
            meter.end(20, Held(tokens / 10, tokens))
        so_far = [now - began for began, _ in running]
        meter.update(1.0, Held(float(sum(so_far)), 10 * sum(so_far)))
        # up to the 40th second, those that have ended held memory for 1 s
        if second > 10:
            assert meter.mean_held_s > 3
    assert meter.mean_held_s == pytest.approx(10.75, rel=0.1)


def test_an_abort_takes_back_what_was_counted_of_it() -> None:
    meter = LoadMeter(1.0, 20.0, 10.0, 0.1, 20.0)
    meter.update(5.0, Held(100.0, 1000))
    before = meter.mean_held_s
    meter.update(5.0, Held())
    assert meter.mean_held_s == before
    meter.update(5.0, Held(5.0, 50))
    assert meter.mean_held_s == pytest.approx(1.0)
