"""Prefixes that sequences of both sides read: who pays, who lends, what is evicted."""

import numpy as np

from muxcluster.core.job import Side
from tests.blocks import only_with
from tests.kvcache.script import Script
from tests.kvcache.walk import LendingWalk
from tests.kvcache.world import MODELS, World

pytestmark = only_with(16)

LEFT, RIGHT = Side.LEFT, Side.RIGHT


def charged(script: Script) -> tuple[int, int]:
    """Blocks of "wide" that are charged to interactive and to batch sequences."""
    wide = script.cache.of("wide")
    return wide.used, wide.batch_used


def test_each_side_reads_what_the_other_computed() -> None:
    for first, second in ((LEFT, RIGHT), (RIGHT, LEFT)):
        script = Script(40)
        script.begin("wide", 0, first, 33, path=(1, 2, 3))
        script.world.open("wide", 1, [1, 2, 4], second)
        assert script.cache.of("wide").num_committed[1] == 32
        assert script.world.num_across == 2
        script.compute("wide", 1, 20)
        script.close("wide", 0)
        script.compute("wide", 1, 20)


def test_an_interactive_reader_pays_for_as_long_as_it_reads() -> None:
    script = Script(40)
    script.begin("wide", 0, RIGHT, 32, path=(1, 2))
    assert charged(script) == (0, 8)
    script.world.open("wide", 1, [1, 2], LEFT)
    assert charged(script) == (8, 0)
    script.world.open("wide", 2, [1, 2], LEFT)
    assert charged(script) == (8, 0)
    script.close("wide", 1)
    assert charged(script) == (8, 0)
    script.close("wide", 2)
    assert charged(script) == (0, 8)
    script.close("wide", 0)
    assert charged(script) == (0, 0)
    assert script.cache.of("wide").num_cached == 8


def test_the_quota_bounds_what_is_read_of_batch_sequences() -> None:
    script = Script(40)
    script.begin("wide", 0, RIGHT, 48, path=(1, 2, 3))
    script.cache.set_quotas({"wide": 8})
    script.world.open("wide", 1, [1, 2, 3], LEFT)
    assert script.cache.of("wide").num_committed[1] == 32
    assert charged(script) == (8, 4)
    script.world.open("wide", 2, [1, 2, 3], RIGHT)
    assert script.cache.of("wide").num_committed[2] == 48


def test_a_cached_prefix_is_charged_to_the_class_that_reads_it() -> None:
    script = Script(40)
    script.begin("wide", 0, LEFT, 32, path=(1, 2))
    script.close("wide", 0)
    script.world.open("wide", 0, [1, 2], RIGHT)
    assert charged(script) == (0, 8)
    assert script.cache.of("wide").lending.lendable(0) == 8
    script.world.open("wide", 1, [1, 2], LEFT)
    assert charged(script) == (8, 0)
    assert script.cache.of("wide").lending.lendable(0) == 0
    script.close("wide", 1)
    assert script.cache.of("wide").lending.lendable(0) == 8


def test_what_another_side_filled_is_lent_saved_and_restored() -> None:
    script = Script(16)
    script.begin("wide", 0, LEFT, 32, path=(1, 2))
    script.close("wide", 0)
    script.world.open("wide", 0, [1, 2], RIGHT)
    script.compute("wide", 0, 10)
    assert script.lend("wide", 0, 12) == 12
    assert script.cache.of("wide").used == 0
    script.begin("odd", 0, LEFT, 60)
    script.close("odd", 0)
    script.compute("wide", 0, 10)
    assert script.cache.of("wide").num_lent[0] == 0


def test_random_operations_share_across_sides() -> None:
    world = World.build(5, 60, 40, {"wide": 50, "odd": 50})
    walk = LendingWalk(world)
    for _ in range(600):
        walk.step()
        for name in MODELS:
            used = {
                tuple(blocks.tolist())
                for (model, row), text in world.texts.items()
                if model == name and text.side is LEFT
                for blocks in world.cache.of(name).tables(np.array([row], dtype=np.int32)).blocks
            }
            charged = world.cache.of(name).used
            assert len(used) * MODELS[name].shape.blocks_per_column <= charged
    assert world.num_across > 5
