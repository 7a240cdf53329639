"""Hybrid packing in random runs to the end: tiny pools, blocks lent, saved and restored."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from muxcluster.core.kvshape import KvShape
from tests.amounts import examples, slow
from tests.scheduling.rig import LANES, Rig, mixed_models, unit_spec
from tests.scheduling.test_random_runs import WORKERS, check_ends, random_requests, run_to_the_end

POOLS = (36, 60, 90, 121, 160, 200)


def random_run(
    lane: str, seed: int, packing: str = "hybrid", *, models=None, pools=POOLS, **policy
) -> tuple[Rig, dict]:
    """A run to the end; worker and memory of the rig find every token that is not where it was."""
    rng = random.Random(f"hybrid {lane} {seed}")
    spec = unit_spec(
        models,
        lane=lane,
        packing=packing,
        num_blocks=rng.choice(pools),
        num_host_blocks=rng.choice((0, 8, 40, 400, 400)),
        workers=rng.choice(WORKERS),
        token_budget=rng.choice((5, 16, 64)),
        max_decode_rows=rng.choice((2, 256)),
        quota_period_s=rng.choice((0.2, 3.0)),
        first_rows=rng.choice((4, 16, 64)),
        ageing_s=rng.choice((0.5, 30.0)),
        saves_lazily=rng.random() < 0.7,
        **policy,
    )
    rig = Rig(spec, seed)
    return rig, run_to_the_end(rng, rig, random_requests(rng, seed, 20))


@pytest.mark.parametrize(
    ("lane", "packing"),
    [
        *((lane, "hybrid") for lane in LANES),
        ("adbs", "additive"),
        *slow(*((lane, "additive") for lane in LANES if lane != "adbs")),
    ],
)
def test_random_runs_end(lane: str, packing: str) -> None:
    for seed in range(examples(4, 50)):
        rig, asked = random_run(lane, seed, packing)
        check_ends(rig, asked)


@pytest.mark.parametrize("kinds", ["c", *slow("a", "ac", "abc")])
def test_models_that_keep_states_lend_and_borrow_whole_columns(kinds: str) -> None:
    """What they keep beside tokens is neither lost nor does it take the place of others'."""
    long = KvShape(num_layers=2, num_kv_heads=3, head_dim=32, itemsize=2)  # 32 tokens a column
    models = [
        replace(each, is_positional=False, prefix_caching=False, shape=long, max_seqs=12)
        if each.name in kinds
        else each
        for each in mixed_models()
    ]
    num_lent: Counter[str] = Counter()
    num_restored = 0
    for seed in range(examples(12, 32)):
        rig, asked = random_run(LANES[seed % len(LANES)], seed, models=models, pools=(56, 60, 72))
        check_ends(rig, asked)
        stats = rig.scheduler.stats(rig.now, "unit").models
        num_lent.update({each.name: each.num_lent_columns for each in stats})
        num_restored += sum(each.num_restored_slots for each in stats)
    assert num_restored > 0
    assert sum(num_lent[kind] for kind in kinds) > 0
