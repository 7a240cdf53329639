"""Batch jobs on the virtual clock: every order computes the same, and shares what it should."""

from functools import cache

import numpy as np
import pytest

from bench.traces.batchmix import Kind, mixed_job
from muxcluster.offline.blend.lengths import known_lengths
from muxcluster.offline.feed.feeder import BatchFeeder
from muxcluster.offline.order.orders import ORDERS, OfflineJob
from muxcluster.offline.predictor import Prediction
from muxcluster.offline.prefix.prompts import Prompts, block_prompts, flat_prompts, take_prompts
from muxcluster.offline.prefix.tree import build_tree
from muxcluster.placement.cost.resources import resource_model
from muxcluster.placement.hardware import GPUS
from muxcluster.sim.batch.run import NUM_BINS
from muxcluster.sim.batch.simulate import SimPredictor
from tests.sim.cases import SHAPE, sim_unit

BLOCK = 16
RESOURCES = resource_model(SHAPE, GPUS["A100-80GB"])
KINDS = [Kind(0.5, 7, 300, 100, 20), Kind(0.5, 1, 0, 100, 120)]
JOB = mixed_job(KINDS, 150, np.random.default_rng(0))
PROMPTS = flat_prompts(JOB.ids, JOB.offsets)
TREE = build_tree(PROMPTS, BLOCK, own_tokens=1)
LARGE, SMALL = 4000, 250


def _predicted(
    prompts: Prompts, outputs: np.ndarray, order: str, columns: int, lane: str
) -> Prediction:
    unit = sim_unit(models=("a",), num_columns=columns, lane=lane, max_seqs=128)
    tree = build_tree(prompts, BLOCK, own_tokens=1)
    lengths = known_lengths(outputs[tree.order].astype(np.float64))
    job = OfflineJob(tree, lengths, RESOURCES, columns * BLOCK * RESOURCES.kv_bytes)
    return SimPredictor(unit, "a", RESOURCES).predict(prompts, outputs, BatchFeeder(job, order))


@cache
def _of(name: str, columns: int, lane: str) -> Prediction:
    return _predicted(PROMPTS, JOB.output_tokens, name, columns, lane)


@pytest.mark.parametrize("lane", ["adbs", "mixed"])
@pytest.mark.parametrize("name", ORDERS)
def test_with_memory_for_all_every_order_saves_what_the_tree_could(name: str, lane: str) -> None:
    found = _of(name, LARGE, lane)
    assert found.saved_tokens == TREE.saved_tokens > 0
    assert found.saving_ratio == TREE.saved_tokens / TREE.prompt_tokens
    assert (found.recomputed_tokens, found.num_refused) == (0, 0)


@pytest.mark.parametrize("name", ORDERS)
def test_with_little_memory_every_order_still_runs_every_token(name: str) -> None:
    found = _of(name, SMALL, "adbs")
    assert found.prompt_tokens == PROMPTS.lengths.sum()
    assert found.output_tokens == JOB.output_tokens.sum()
    assert found.num_refused == 0
    assert found.makespan_s > _of(name, LARGE, "adbs").makespan_s


def test_with_little_memory_only_planned_orders_find_prefixes() -> None:
    saved = {name: _of(name, SMALL, "adbs").saved_tokens / TREE.saved_tokens for name in ORDERS}
    assert saved["dfs"] == saved["batchllm"] == 1.0
    assert min(saved["blend"], saved["blend-groups"]) > 0.9
    assert max(saved["fcfs"], saved["random"]) < 0.6


@pytest.mark.parametrize("lane", ["adbs", "mixed"])
def test_use_over_time_adds_up_to_the_work_of_the_job(lane: str) -> None:
    found = _of("dfs", LARGE, lane)
    use = found.use
    assert len(use.compute) == len(use.memory) == len(use.held) == NUM_BINS
    assert found.makespan_s == pytest.approx(NUM_BINS * use.bin_s)
    lengths, outputs = PROMPTS.lengths.astype(float), JOB.output_tokens.astype(float)
    # the first output token comes with the prompt and reads nothing
    read_s = RESOURCES.read_s(lengths, outputs - 1, (outputs - 1) ** 2).sum()
    assert use.memory.sum() * use.bin_s == pytest.approx(read_s, rel=1e-6)
    computed = lengths.sum() - found.saved_tokens + (outputs - 1).sum()
    compute_s = use.compute.sum() * use.bin_s
    assert computed * RESOURCES.token_s < compute_s < 1.05 * computed * RESOURCES.token_s
    assert 0 < use.held.max() <= 1 and use.compute.max() < 1


def test_the_same_order_gives_the_same_makespan() -> None:
    some = take_prompts(PROMPTS, np.arange(40))
    runs = [_predicted(some, JOB.output_tokens[:40], "fcfs", LARGE, "adbs") for _ in range(2)]
    assert runs[0].makespan_s == runs[1].makespan_s > 0


def test_block_ids_stand_for_whole_blocks() -> None:
    prompts = block_prompts([[1, 2, 3], [1, 2, 4], [9]], [3 * 64, 2 * 64 + 30, 64], 64)
    found = _predicted(prompts, np.array([3, 3, 3]), "fcfs", LARGE, "temporal")
    assert found.saved_tokens == 2 * 64
    assert (found.prompt_tokens, found.output_tokens) == (3 * 64 + 2 * 64 + 30 + 64, 9)


def test_what_the_context_cannot_hold_is_cut_or_refused() -> None:
    ids = np.zeros(2048 + 2040 + 10, dtype=np.int32)
    prompts = flat_prompts(ids, np.array([0, 2049, 4088, 4098]))
    found = _predicted(prompts, np.array([5, 100, 4]), "fcfs", LARGE, "temporal")
    assert found.num_refused == 1
    assert found.prompt_tokens == 2039 + 10
    assert found.output_tokens == 2048 - 2039 + 4
