"""Hybrid packing in random runs to the end: tiny pools, blocks lent, saved and restored."""

import random

import pytest

from tests.scheduling.rig import LANES, Rig, unit_spec
from tests.scheduling.test_random_runs import WORKERS, check_ends, random_requests, run_to_the_end

RUNS_PER_PART = 25


def random_run(lane: str, seed: int, packing: str = "hybrid", **policy) -> tuple[Rig, dict]:
    """A run to the end; worker and memory of the rig find every token that is not where it was."""
    rng = random.Random(f"hybrid {lane} {seed}")
    spec = unit_spec(
        lane=lane,
        packing=packing,
        num_blocks=rng.choice((36, 60, 90, 121, 160, 200)),
        num_host_blocks=rng.choice((0, 8, 40, 400, 400)),
        workers=rng.choice(WORKERS),
        token_budget=rng.choice((5, 16, 64)),
        max_decode_rows=rng.choice((2, 256)),
        quota_period_s=rng.choice((0.2, 3.0)),
        batch_stretch=rng.choice((0.0, 0.5, 2.0)),
        ageing_s=rng.choice((0.5, 30.0)),
        saves_lazily=rng.random() < 0.7,
        **policy,
    )
    rig = Rig(spec, seed)
    return rig, run_to_the_end(rng, rig, random_requests(rng, seed, 20))


@pytest.mark.parametrize("packing", ["hybrid", "additive"])
@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("lane", LANES)
def test_random_runs_end(lane: str, part: int, packing: str) -> None:
    for seed in range(part * RUNS_PER_PART, (part + 1) * RUNS_PER_PART):
        rig, asked = random_run(lane, seed, packing)
        check_ends(rig, asked)
