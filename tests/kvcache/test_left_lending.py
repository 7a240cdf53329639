"""The rules of interactive sequences that lend: their tokens lie where the taker's will.

"wide" columns are 4 blocks of 16 places, "odd" ones 3 blocks of 24 places.
"""

import numpy as np

from muxcluster.core.job import Side
from muxcluster.kvcache.pool import Shortage
from tests.blocks import only_with
from tests.kvcache.script import Script, num_saved

pytestmark = only_with(16)

LEFT, RIGHT = Side.LEFT, Side.RIGHT
FIRST = np.zeros(1, dtype=np.int32)
"""The row 0."""


def lent_pair(filled: int) -> Script:
    """A left "odd" sequence with `filled` tokens has lent its only column, another took it."""
    script = Script(6)
    script.begin("odd", 0, LEFT, filled)
    script.begin("odd", 2, LEFT, 24)
    script.lend("odd", 0, 3)
    script.world.open("odd", 1, [], LEFT)
    return script


def test_a_lent_left_column_is_charged_to_nobody_until_it_is_restored() -> None:
    script = Script(6)
    script.begin("odd", 0, LEFT, 30)
    assert script.cache.of("odd").used == 6
    assert script.lend("odd", 0, 3) == 3
    assert (script.cache.of("odd").used, script.cache.lent, script.cache.of("odd").batch_used) == (
        3,
        3,
        0,
    )
    script.compute("odd", 0, 1)
    assert (script.cache.of("odd").used, script.cache.lent) == (6, 0)


def test_the_first_token_over_it_takes_all_that_it_holds() -> None:
    script = lent_pair(20)
    assert num_saved(script.compute("odd", 1, 1)) == 3 * 20
    assert script.cache.of("odd").lending.restore_cost(0) == 3
    assert num_saved(script.compute("odd", 1, 5)) == 0
    script.close("odd", 1)
    assert (script.cache.free, script.cache.lent) == (3, 0)


def test_it_is_restored_from_its_host_blocks() -> None:
    script = lent_pair(20)
    script.compute("odd", 1, 1)
    script.close("odd", 2)
    script.world.cache.drop_cache()
    (copies,) = script.compute("odd", 0, 1)
    assert copies.restores[:, 2].tolist() == [20, 20, 20]
    assert len(copies.moves) == 0


def test_what_nobody_wrote_over_is_moved_and_the_taker_waits() -> None:
    script = lent_pair(20)
    assert script.world.grow("odd", {1: 24})
    script.close("odd", 2)
    script.world.cache.drop_cache()
    job_id, (copies,) = script.start("odd", 0, 1)
    assert copies.moves[:, 2].tolist() == [20, 20, 20]
    assert script.cache.of("odd").lending.blocked().tolist() == [False, True] + [False] * 4
    assert script.cache.of("odd").lending.lendable(1) == 0
    script.finish(job_id)
    assert script.cache.of("odd").lending.blocked() is None
    assert num_saved(script.compute("odd", 1, 5)) == 0


def test_a_restored_left_column_may_take_lent_batch_blocks() -> None:
    script = lent_pair(20)
    script.compute("odd", 1, 1)
    script.close("odd", 2)
    script.world.cache.drop_cache()
    script.begin("odd", 3, RIGHT, 24)
    script.lend("odd", 3, 3)
    assert script.cache.free == 0
    restored, saved = script.compute("odd", 0, 1)
    assert restored.restores[:, 2].tolist() == [20, 20, 20]
    assert num_saved([saved]) == 3 * 21
    assert (script.cache.of("odd").used, script.cache.lent) == (6, 0)
    assert script.cache.of("odd").lending.restore_cost(3) == 3


def test_after_a_failed_restore_it_is_lent_again_and_so_is_what_it_took() -> None:
    script = Script(12)
    script.begin("odd", 0, LEFT, 20)
    script.begin("odd", 3, RIGHT, 24)
    script.begin("odd", 2, LEFT, 48)
    script.lend("odd", 0, 3)
    script.world.open("odd", 1, [], LEFT)
    script.compute("odd", 1, 1)
    script.lend("odd", 3, 3)
    before = script.cache.of("odd").used, script.cache.free
    job_id, _ = script.start("odd", 0, 1)
    script.fail(job_id)
    assert ("odd", 3) not in script.world.texts, "its saves are lost"
    assert script.cache.of("odd").num_lent[0] == 1
    assert script.cache.of("odd").used == before[0]
    assert script.cache.free == before[1] + 3
    script.compute("odd", 0, 1)


def test_a_column_over_batch_tokens_is_kept_and_others_are_lent() -> None:
    script = Script(9)
    script.begin("odd", 0, RIGHT, 24)
    script.begin("wide", 1, RIGHT, 0)
    script.begin("odd", 1, LEFT, 48)
    script.lend("odd", 0, 3)
    script.compute("odd", 1, 4)
    assert script.cache.of("odd").lending.lend(1, 52, 6) == 6
    script.world.check()
    assert script.cache.of("odd").num_lent[1] == 3
    assert (script.cache.of("odd").used, script.cache.lent) == (3, 6)
    script.compute("odd", 1, 2)
    assert (script.cache.of("odd").used, script.cache.lent) == (9, 0)
    assert script.cache.of("odd").lending.restore_cost(0) == 3
    script.lend("odd", 1, 6)
    script.close("odd", 1)
    assert (script.cache.of("odd").used, script.cache.lent, script.cache.free) == (0, 3, 6)
    script.compute("odd", 0, 0)


def test_an_empty_column_over_lent_tokens_is_given_up() -> None:
    script = lent_pair(20)
    assert script.world.grow("odd", {1: 24})
    assert (script.cache.lent, script.cache.of("odd").used) == (0, 6)
    assert script.lend("odd", 1, 3) == 3
    assert (script.cache.lent, script.cache.of("odd").used) == (3, 3)
    assert script.cache.of("odd").lending.restore_cost(0) == 0


def test_a_column_with_another_reader_is_not_lent() -> None:
    script = Script(9)
    script.begin("odd", 0, LEFT, 30, path=(1,))
    script.begin("odd", 1, LEFT, 30, path=(1,))
    assert script.lend("odd", 0, 6) == 3
    assert script.cache.of("odd").lending.lendable(0) == 0


def test_a_restore_is_bound_by_the_quota() -> None:
    script = Script(9)
    script.begin("odd", 0, LEFT, 20)
    script.lend("odd", 0, 3)
    script.cache.set_quotas({"odd": 2})
    assert script.cache.of("odd").lending.restore(FIRST, 99) == Shortage(1, by_quota=True)
    script.cache.set_quotas({"odd": 5})
    assert script.cache.of("odd").lending.restore_shortage(0, 0) is None
    assert script.cache.of("odd").lending.restore_shortage(0, 3) == Shortage(1, by_quota=True)
