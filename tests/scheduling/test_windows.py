"""Models with sliding windows in random runs to the end: every token that a job sees is there."""

from dataclasses import replace

import pytest

from muxcluster.core.unitspec import ModelSpec
from tests.amounts import examples
from tests.scheduling import test_hybrid_random, test_random_runs
from tests.scheduling.rig import (
    LANES,
    SOME_LANES,
    Rig,
    mixed_models,
    model_spec,
    request,
    unit_spec,
)
from tests.scheduling.test_random_runs import check_ends

BLOCK = 8  # tokens of a block at head_dim 128


def windowed() -> list[ModelSpec]:
    """Of three models one has a window in all layers, and one in every second."""
    a, b, c = mixed_models()
    return [
        replace(a, window=20, window_layers=(0, 1), is_unordered=False),
        b,
        replace(c, window=13, window_layers=(0, 2), is_unordered=False),
    ]


def has_given_back(rig: Rig) -> bool:
    """Some job began more than a window and a block behind the first token."""
    starts = {spec.name: spec.window + BLOCK for spec in windowed() if spec.window}
    return any(
        job.model in starts and bool((job.rows.starts > starts[job.model]).any())
        for job in rig.jobs
    )


@pytest.mark.parametrize("lane", SOME_LANES)
def test_random_runs_end(lane: str) -> None:
    """Steps are sent ahead in half of them."""
    num_given_back = 0
    for seed in range(examples(4, 60)):
        rig, asked = test_random_runs.random_run(
            lane, seed, models=windowed(), pipeline_depth=1 + seed % 2
        )
        check_ends(rig, asked)
        num_given_back += has_given_back(rig)
    assert num_given_back > 0


def test_random_runs_with_lending_end() -> None:
    num_given_back = num_restored = 0
    for seed in range(examples(8, 100)):
        rig, asked = test_hybrid_random.random_run(
            LANES[seed % len(LANES)], seed, models=windowed(), pools=(44, 56, 60, 72)
        )
        check_ends(rig, asked)
        num_given_back += has_given_back(rig)
        stats = rig.scheduler.stats(rig.now, "unit").models
        num_restored += sum(each.num_restored_slots for each in stats if each.name != "b")
    assert num_given_back > 0
    assert num_restored > 0


def peak_blocks(model: ModelSpec, num_blocks: int, num_requests: int) -> tuple[int, int]:
    """The most blocks that requests with outputs of 50 tokens held, and the preemptions."""
    rig = Rig(unit_spec([model], lane="mixed", num_blocks=num_blocks))
    rig.add(*(request(f"r{i}", num_prompt=9, num_output=50) for i in range(num_requests)))
    peak = 0
    while rig.num_open:
        rig.step()
        peak = max(peak, rig.scheduler.stats(rig.now, "unit").models[0].used_blocks)
    assert all(len(tokens) == 50 for tokens in rig.tokens.values())
    return peak, len(rig.preempted)


def test_a_load_of_long_outputs_holds_its_windows_alone() -> None:
    """Six sequences of 59 tokens take 8 columns each without windows, and 3 of a window of 16."""
    plain = model_spec("a", prefix_caching=False)
    window = replace(plain, window=16, window_layers=(0, 1), is_unordered=False)
    assert peak_blocks(plain, 200, 6)[0] > 6 * 7 * 4
    peak, num_preempted = peak_blocks(window, 200, 6)
    assert peak <= 6 * 3 * 4
    assert num_preempted == 0
    # A pool of that size carries them, where without windows most are preempted.
    assert peak_blocks(window, 6 * 3 * 4 + 4, 6)[1] == 0
    assert peak_blocks(plain, 6 * 3 * 4 + 4, 6)[1] > 0
    half = replace(window, window_layers=(1,))
    assert peak_blocks(half, 200, 6)[0] <= 6 * (8 * 2 + 3 * 2)
