"""Hybrid packing in random runs to the end: tiny pools, blocks lent, saved and restored."""

import random

import pytest

from muxcluster.core.events import Finished, FinishReason
from muxcluster.core.job import WorkerSlot
from tests.scheduling.rig import LADDER, LANES, TWO_WORKERS, Rig, expected_output, unit_spec
from tests.scheduling.test_random_runs import SPLIT, run_to_the_end

WORKERS = (TWO_WORKERS, (WorkerSlot(3, (1.0,)),), SPLIT, (*TWO_WORKERS, WorkerSlot(2, LADDER)))
RUNS_PER_PART = 25


def random_run(lane: str, seed: int, packing: str = "hybrid") -> tuple[Rig, dict]:
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
    )
    rig = Rig(spec, seed)
    names = [f"{seed}-{i}" for i in range(rng.randint(1, 20))]
    asked = run_to_the_end(rng, rig, names)
    return rig, asked


@pytest.mark.parametrize("packing", ["hybrid", "additive"])
@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("lane", LANES)
def test_random_runs_end(lane: str, part: int, packing: str) -> None:
    for seed in range(part * RUNS_PER_PART, (part + 1) * RUNS_PER_PART):
        rig, asked = random_run(lane, seed, packing)
        rig.check_empty()
        assert set(rig.ends) == set(asked)
        for name, end in rig.ends.items():
            output = expected_output(asked[name])
            assert output[: len(rig.tokens[name])] == rig.tokens[name]
            is_whole = isinstance(end, Finished) and end.reason is not FinishReason.ABORT
            if is_whole and end.reason is not FinishReason.ERROR:
                assert rig.tokens[name] == output
