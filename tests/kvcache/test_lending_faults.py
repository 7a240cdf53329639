"""The random walk sees what it is there to see: each planted fault makes it fail."""

from collections.abc import Callable

import numpy as np
import pytest

from muxcluster.kvcache.cache import KvCache
from muxcluster.kvcache.lending.blocks import NO_RUNS, HostBlocks, LentColumns
from muxcluster.kvcache.lending.model import ModelLending
from muxcluster.kvcache.lending.state import LentState
from tests.blocks import only_with
from tests.kvcache.script import Script
from tests.kvcache.test_lending_random import CONDITIONS, QUOTAS
from tests.kvcache.test_saving_rules import (
    LEFT,
    RIGHT,
)
from tests.kvcache.test_saving_rules import (
    test_a_host_block_that_a_running_job_fills_waits_for_its_end as reuse_a_host_block,
)
from tests.kvcache.walk import LendingWalk
from tests.kvcache.world import World

pytestmark = only_with(16)

Patch = Callable[[pytest.MonkeyPatch], None]


def _skip_a_save(patch: pytest.MonkeyPatch) -> None:
    save = LentState.save
    patch.setattr(LentState, "save", lambda *arguments: save(*arguments)[1:])


def _round_down(patch: pytest.MonkeyPatch) -> None:
    def touched(self, victim, blocks, held):
        places = held * self._kv.slot_bytes // victim.slot_bytes
        return np.where(held == self._kv.block_tokens, victim.block_tokens, places)

    patch.setattr(ModelLending, "_touched", touched)


def _forget_who_is_blocked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LentState, "blocked", lambda *_: None)


def _trust_failed_restores(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LentState, "_undo", LentState._finish)


def _trust_failed_saves(patch: pytest.MonkeyPatch) -> None:
    end = LentState.end_job

    def forgiving(self, job_id, *, succeeded):
        lost = end(self, job_id, succeeded=succeeded)
        for model, row in lost:
            self.models[self.index[model]].lent.is_spoiled[row] = False
        return []

    patch.setattr(LentState, "end_job", forgiving)


def _skip_moves(patch: pytest.MonkeyPatch) -> None:
    copies = ModelLending._copies

    def without(self, restore):
        answer = copies(self, restore)
        return type(answer)(answer.model, answer.saves, NO_RUNS, answer.restores)

    patch.setattr(ModelLending, "_copies", without)


def _free_what_is_not_saved(patch: pytest.MonkeyPatch) -> None:
    swap_out = ModelLending.swap_out

    def without(self, *arguments):
        answer = swap_out(self, *arguments)
        return type(answer)(answer.model, NO_RUNS, answer.moves, answer.restores)

    patch.setattr(ModelLending, "swap_out", without)


def _look_at_the_wrong_end(patch: pytest.MonkeyPatch) -> None:
    places = LentColumns.places
    patch.setattr(
        LentColumns, "places", lambda *arguments, is_left: places(*arguments, is_left=False)
    )


def _forget_what_lies_below(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LentState, "_list_restored", lambda *_: None)


def _skip_a_restore(patch: pytest.MonkeyPatch) -> None:
    copies = ModelLending._copies

    def without(self, restore):
        answer = copies(self, restore)
        return type(answer)(answer.model, answer.saves, answer.moves, answer.restores[1:])

    patch.setattr(ModelLending, "_copies", without)


@pytest.mark.parametrize(
    "fault",
    [
        _skip_a_save,
        _round_down,
        _forget_who_is_blocked,
        _trust_failed_restores,
        _trust_failed_saves,
        _skip_moves,
        _skip_a_restore,
        _look_at_the_wrong_end,
        _forget_what_lies_below,
        _free_what_is_not_saved,
    ],
)
def test_the_data_shows_a_planted_fault(fault: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    # Without the invariants, so that it is lost tokens that show it.
    monkeypatch.setattr(KvCache, "check", lambda _: None)
    with pytest.raises(AssertionError):
        for seed, num_blocks, num_host_blocks, _ in CONDITIONS:
            walk = LendingWalk(World.build(seed, num_blocks, num_host_blocks, QUOTAS))
            for _ in range(1000):
                walk.step()


def test_the_data_shows_a_host_block_that_is_free_too_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reuse_a_host_block()
    monkeypatch.setattr(HostBlocks, "touch", lambda *_: None)
    monkeypatch.setattr(HostBlocks, "settle", lambda *_: None)
    monkeypatch.setattr(KvCache, "check", lambda _: None)
    with pytest.raises(AssertionError, match="lost tokens"):
        reuse_a_host_block()


def _busy_script() -> Script:
    """A column lent and taken, one lent and untaken, a save and a restore on their way."""
    script = Script(15)
    script.begin("odd", 0, RIGHT, 48)
    script.begin("odd", 2, RIGHT, 24)
    script.begin("odd", 3, RIGHT, 48)
    script.lend("odd", 0, 6)
    script.lend("odd", 2, 3)
    script.world.open("odd", 1, [], LEFT)
    script.start("odd", 1, 30)
    script.close("odd", 3)
    return script


def _state(script: Script):
    return script.cache._lent


def _lent(script: Script):
    return script.cache.of("odd")._kv.lent


def _taken_block(script: Script) -> int:
    return int(np.flatnonzero(_state(script).pool.owners == 3)[0])


def _miscount_costs(script: Script) -> None:
    _lent(script).costs[0] += 1


def _lose_a_host_block(script: Script) -> None:
    _state(script).host_blocks.take(1)


def _name_a_host_block_twice(script: Script) -> None:
    column = script.cache.of("odd")._kv.sequences.columns[2, 0]
    _lent(script).host_blocks[column, 0] = _lent(script).host_blocks[column, 1]


def _lower_a_watermark(script: Script) -> None:
    _state(script).lenders.saved[_taken_block(script)] = 0


def _pass_a_watermark(script: Script) -> None:
    script.cache.of("odd")._kv.over_lent.safe[:] = 23


def _forget_a_shared_column(script: Script) -> None:
    shared = script.cache.of("odd")._kv.over_lent
    shared.keep(np.zeros(len(shared), dtype=np.bool_))


def _swap_owners(script: Script) -> None:
    _state(script).lenders.cells[_taken_block(script)] += 1


def _hide_a_lent_block(script: Script) -> None:
    _state(script).takeable.remove(_state(script).takeable.ids[:1].astype(np.int32))


def _miscount_lent(script: Script) -> None:
    _state(script).ledger.free_lent(1)


def _forget_a_save(script: Script) -> None:
    _lent(script).num_saving[:] = 0


def _invent_a_source(script: Script) -> None:
    _state(script).lenders.is_source[_taken_block(script)] = True


def _lend_a_reader(script: Script) -> None:
    script.cache.of("odd")._kv.columns.refs[script.cache.of("odd")._kv.sequences.columns[2, 0]] = 2


@pytest.mark.parametrize(
    "fault",
    [
        _miscount_costs,
        _lose_a_host_block,
        _name_a_host_block_twice,
        _lower_a_watermark,
        _pass_a_watermark,
        _forget_a_shared_column,
        _swap_owners,
        _hide_a_lent_block,
        _miscount_lent,
        _forget_a_save,
        _invent_a_source,
        _lend_a_reader,
    ],
)
def test_check_sees_a_planted_fault(fault: Callable[[Script], None]) -> None:
    script = _busy_script()
    fault(script)
    with pytest.raises(AssertionError):
        script.cache.check()
