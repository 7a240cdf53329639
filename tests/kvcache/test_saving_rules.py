"""The rules of saving and restoring what interactive sequences overwrite.

"wide" columns are 4 blocks of 16 places of 512 bytes, "odd" ones 3 blocks of 24 places of 320.
"""

import numpy as np
import pytest

from muxcluster.core.job import Side
from muxcluster.kvcache.pool import Shortage
from tests.blocks import only_with
from tests.kvcache.script import Script, num_saved

pytestmark = only_with(16)

LEFT, RIGHT = Side.LEFT, Side.RIGHT
FIRST = np.zeros(1, dtype=np.int32)
"""The row 0."""


def shared_pair(filled: int, *, saves_lazily: bool = True) -> Script:
    """A right "odd" sequence with `filled` tokens has lent its only column, a left one took it."""
    script = Script(3, saves_lazily=saves_lazily)
    script.begin("odd", 0, RIGHT, filled)
    script.lend("odd", 0, 3)
    script.world.open("odd", 1, [], LEFT)
    return script


@pytest.mark.parametrize(
    ("filled", "written", "places"), [(24, 1, 2), (24, 5, 8), (24, 15, 24), (5, 11, 0), (5, 12, 1)]
)
def test_only_touched_places_with_tokens_are_saved(filled: int, written: int, places: int) -> None:
    """5 tokens start at byte 6,080: 11 wide tokens (5,632 bytes) spare them, 12 (6,144) do not."""
    script = Script(4)
    script.begin("odd", 0, RIGHT, filled)
    script.lend("odd", 0, 3)
    script.world.open("wide", 0, [], LEFT)
    assert num_saved(script.compute("wide", 0, written)) == 3 * places


def test_a_slot_is_saved_once() -> None:
    script = shared_pair(24)
    assert num_saved(script.compute("odd", 1, 4)) == 12
    assert num_saved(script.compute("odd", 1, 1)) == 3
    script.close("odd", 1)
    assert script.cache.lent == 3
    script.world.open("odd", 2, [], LEFT)
    assert num_saved(script.compute("odd", 2, 5)) == 0
    assert num_saved(script.compute("odd", 2, 2)) == 6


def test_eager_saving_takes_all_with_the_first_write() -> None:
    script = shared_pair(20, saves_lazily=False)
    assert num_saved(script.compute("odd", 1, 1)) == 60
    assert script.cache.of("odd").lending.restore_cost(0) == 3
    script.close("odd", 1)
    assert (script.cache.free, script.cache.lent) == (3, 0)


def test_a_full_left_column_leaves_no_right_owner() -> None:
    """24 odd tokens are 7,680 bytes: the last of 16 wide places is not even touched."""
    script = Script(4)
    script.begin("wide", 0, RIGHT, 16)
    script.lend("wide", 0, 4)
    script.world.open("odd", 0, [1], LEFT)
    assert num_saved(script.compute("odd", 0, 23)) == 3 * 15
    assert num_saved(script.compute("odd", 0, 1)) == 3
    script.close("odd", 0)
    assert (script.cache.of("odd").num_cached, script.cache.lent) == (3, 1)


def test_a_block_without_left_owner_is_restored_in_place() -> None:
    script = shared_pair(24)
    script.compute("odd", 1, 4)
    script.close("odd", 1)
    assert script.cache.of("odd").lending.restore_cost(0) == 0
    (copies,) = script.compute("odd", 0, 0)
    assert (copies.restores[:, 2].tolist(), len(copies.moves)) == ([4, 4, 4], 0)
    assert script.cache.of("odd").batch_used == 3


def test_a_taken_block_is_restored_into_a_fresh_one() -> None:
    script = Script(6)
    script.begin("odd", 0, RIGHT, 48)
    script.lend("odd", 0, 6)
    script.world.open("odd", 1, [], LEFT)
    script.compute("odd", 1, 4)
    script.world.check()
    assert script.cache.of("odd").lending.restore_cost(0) == 3
    answer = script.cache.of("odd").lending.restore(FIRST, 99)
    assert answer == Shortage(3, by_quota=False)
    assert script.cache.of("odd").num_lent[0] == 2


def test_a_restore_moves_what_was_not_saved() -> None:
    script = Script(9)
    script.begin("odd", 0, RIGHT, 24)
    script.begin("odd", 2, RIGHT, 48)
    script.lend("odd", 0, 3)
    script.world.open("odd", 1, [], LEFT)
    script.compute("odd", 1, 4)
    script.close("odd", 2)
    job_id, (copies,) = script.start("odd", 0, 1)
    assert copies.restores[:, 2].tolist() == [4, 4, 4]
    assert copies.moves[:, 2].tolist() == [20, 20, 20]
    assert script.cache.of("odd").lending.blocked().tolist() == [False, True] + [False] * 4
    assert script.cache.of("wide").lending.blocked() is None
    script.finish(job_id)
    assert script.cache.of("odd").lending.blocked() is None
    assert num_saved(script.compute("odd", 1, 5)) == 0


def test_a_left_sequence_may_end_while_its_block_is_restored_from() -> None:
    script = Script(9)
    script.begin("odd", 0, RIGHT, 24)
    script.begin("odd", 2, RIGHT, 48)
    script.lend("odd", 0, 3)
    script.world.open("odd", 1, [], LEFT)
    script.compute("odd", 1, 4)
    script.close("odd", 2)
    job_id, _ = script.start("odd", 0, 0)
    script.close("odd", 1)
    assert (script.cache.lent, script.cache.of("odd").batch_used, script.cache.free) == (0, 6, 3)
    script.finish(job_id)
    assert (script.cache.of("odd").batch_used, script.cache.free) == (3, 6)


def test_after_a_failed_restore_the_sequence_is_lent_as_before() -> None:
    script = Script(12)
    script.begin("odd", 0, RIGHT, 24)
    script.begin("odd", 2, RIGHT, 72)
    script.lend("odd", 0, 3)
    script.world.open("odd", 1, [], LEFT)
    script.compute("odd", 1, 4)
    script.close("odd", 2)
    before = (script.cache.lent, script.cache.free, script.cache.of("odd").batch_used)
    job_id, _ = script.start("odd", 0, 2)
    assert script.cache.of("odd").capacity[0] == 48
    script.fail(job_id)
    assert (script.cache.lent, script.cache.free, script.cache.of("odd").batch_used) == before
    assert script.cache.of("odd").num_lent[0] == 1
    assert script.cache.of("odd").capacity[0] == 24
    assert script.cache.of("odd").lending.restore_cost(0) == 3
    script.compute("odd", 0, 2)


def test_while_it_is_saved_a_sequence_can_only_be_closed() -> None:
    script = shared_pair(24)
    job_id, _ = script.start("odd", 1, 4)
    assert not script.cache.of("odd").lending.can_restore(0)
    assert script.cache.of("odd").lending.lendable(0) == 0
    script.finish(job_id)
    assert script.cache.of("odd").lending.can_restore(0)


def test_a_host_block_that_a_running_job_fills_waits_for_its_end() -> None:
    script = Script(6, num_host_blocks=6)
    script.begin("odd", 0, RIGHT, 24)
    script.begin("odd", 2, RIGHT, 24)
    script.lend("odd", 0, 3)
    script.world.open("odd", 1, [], LEFT)
    late, _ = script.start("odd", 1, 4)
    script.close("odd", 0)
    assert script.cache.of("odd").lending.lendable(2) == 3
    script.lend("odd", 2, 3)
    script.world.open("odd", 3, [], LEFT)
    script.compute("odd", 3, 24)
    script.world.open("odd", 0, [], RIGHT)
    assert script.cache.of("odd").lending.lendable(0) == 0
    script.finish(late)
    script.close("odd", 3)
    script.compute("odd", 2, 0)


def test_a_failed_save_is_reported_once_and_only_for_sequences_still_there() -> None:
    script = Script(6)
    script.begin("odd", 0, RIGHT, 24)
    script.begin("wide", 0, RIGHT, 0)
    script.lend("odd", 0, 3)
    script.world.open("odd", 1, [], LEFT)
    assert script.world.grow("odd", {1: 48})
    job_id, _ = script.start("odd", 1, 30)
    script.fail(job_id)
    assert ("odd", 0) not in script.world.texts
    assert script.cache.end_copies(job_id, False) == []


def test_a_failed_save_of_a_closed_sequence_is_nobodys_business() -> None:
    script = shared_pair(24)
    job_id, _ = script.start("odd", 1, 4)
    script.close("odd", 0)
    script.world.open("odd", 0, [], RIGHT)
    script.world.runs.pop(job_id)
    assert script.cache.end_copies(job_id, False) == []
    assert script.cache.of("odd").lending.can_restore(0)
    script.cache.check()


def test_a_reset_leaves_nothing_behind() -> None:
    script = Script(12)
    script.begin("odd", 0, RIGHT, 24)
    script.begin("odd", 2, RIGHT, 72)
    script.lend("odd", 0, 3)
    script.lend("odd", 2, 3)
    script.world.open("odd", 1, [], LEFT)
    script.start("odd", 1, 40)
    script.world.reset()
    script.world.check()
    assert script.cache.free == 12


def test_blocks_that_are_swapped_out_are_free_and_their_tokens_come_back() -> None:
    """Of columns of 16, 16 and 8 tokens the last two are lent, and three blocks of the last go."""
    script = Script(20)
    script.begin("wide", 0, RIGHT, 40)
    script.begin("wide", 1, RIGHT, 16)
    script.lend("wide", 0, 5)
    cache, world = script.cache, script.world
    assert (
        cache.of("wide").lending.untaken(0),
        cache.of("wide").lending.restore_cost(0),
        cache.free,
    ) == (8, 0, 4)
    job_id = world.next()
    saves = cache.of("wide").lending.swap_out(0, 3, job_id)
    assert saves.saves[:, 2].tolist() == [8, 8, 8]
    assert (
        cache.of("wide").lending.untaken(0),
        cache.of("wide").lending.restore_cost(0),
        cache.free,
    ) == (5, 3, 7)
    assert not cache.of("wide").lending.can_restore(0)
    assert world.grow("wide", {1: 32})
    world.launch(job_id, "wide", {1: 16}, [saves])
    script.finish(job_id)
    (copies,) = script.compute("wide", 0, 1)
    assert (copies.restores[:, 2].tolist(), len(copies.moves)) == ([8, 8, 8], 0)
    assert (cache.lent, cache.free, cache.free_host_blocks) == (0, 0, 40)
