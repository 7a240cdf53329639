"""Models with columns of states in random runs to the end: no job finds them lost."""

from dataclasses import replace

import pytest

from muxcluster.core.unitspec import ModelSpec
from muxcluster.scheduling.assembly import kv_cache, model_state
from muxcluster.scheduling.memory.quotas import floors
from tests.amounts import examples
from tests.scheduling import test_hybrid_random, test_random_runs
from tests.scheduling.rig import LANES, SOME_LANES, mixed_models, unit_spec
from tests.scheduling.test_random_runs import check_ends


def stateful() -> list[ModelSpec]:
    """Two of three models keep states, in one column and in two."""
    a, b, c = mixed_models()
    return [
        replace(a, state_columns=2, prefix_caching=False),
        replace(b, state_columns=1, prefix_caching=False),
        c,
    ]


@pytest.mark.parametrize("lane", SOME_LANES)
def test_random_runs_end(lane: str) -> None:
    """Steps are sent ahead in half of them."""
    for seed in range(examples(4, 60)):
        rig, asked = test_random_runs.random_run(
            lane, seed, models=stateful(), pipeline_depth=1 + seed % 2
        )
        check_ends(rig, asked)


def test_random_runs_with_lending_end() -> None:
    num_lent = num_restored = 0
    for seed in range(examples(4, 100)):
        rig, asked = test_hybrid_random.random_run(
            LANES[seed % len(LANES)], seed, models=stateful(), pools=(60, 72, 90)
        )
        check_ends(rig, asked)
        stats = rig.scheduler.stats(rig.now, "unit").models
        num_lent += sum(each.num_lent_columns for each in stats if each.name != "c")
        num_restored += sum(each.num_restored_slots for each in stats if each.name != "c")
    assert num_lent > 0
    assert num_restored > 0


def test_a_pool_that_holds_only_states_is_refused() -> None:
    unit = unit_spec(stateful()[1:2], num_blocks=7)
    kv = kv_cache(unit, has_block_ids=False, lends=False)
    models = [model_state(each, unit, kv.of(each.name), keeps_output=False) for each in unit.models]
    assert models[0].blocks(1) == 8
    with pytest.raises(ValueError, match="holds not one column of 'b'"):
        floors(models, 7)
    assert floors(models, 8) == {"b": 8}
