"""The random walk sees what it is there to see: each planted fault makes it fail."""

from collections.abc import Callable

import numpy as np
import pytest

from muxcluster.kvcache.cache import KvCache
from muxcluster.kvcache.copies import NO_RUNS
from muxcluster.kvcache.restoring import Restoring
from muxcluster.kvcache.saving import Saving
from tests.kvcache.test_sharing_random import CONDITIONS, QUOTAS
from tests.kvcache.walk import SharingWalk
from tests.kvcache.world import World

Patch = Callable[[pytest.MonkeyPatch], None]


def _skip_a_save(patch: pytest.MonkeyPatch) -> None:
    save = Saving._save
    patch.setattr(Saving, "_save", lambda *arguments: save(*arguments)[1:])


def _round_down(patch: pytest.MonkeyPatch) -> None:
    def touched(self, kv, victim, held):
        places = held * kv.slot_bytes // victim.slot_bytes
        return np.where(held == kv.block_tokens, victim.block_tokens, places)

    patch.setattr(Saving, "_touched", touched)


def _forget_who_is_blocked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Restoring, "blocked", lambda *_: None)


def _trust_failed_restores(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Restoring, "_undo", Restoring._finish)


def _trust_failed_saves(patch: pytest.MonkeyPatch) -> None:
    end = Restoring.end

    def forgiving(self, job_id, *, succeeded):
        lost = end(self, job_id, succeeded=succeeded)
        for model, slot in lost:
            self._sharing.models[self._sharing.index[model]].lent.is_spoiled[slot] = False
        return []

    patch.setattr(Restoring, "end", forgiving)


def _skip_moves(patch: pytest.MonkeyPatch) -> None:
    copies = Restoring._copies

    def without(self, restore):
        answer = copies(self, restore)
        return type(answer)(answer.model, answer.saves, NO_RUNS, answer.restores)

    patch.setattr(Restoring, "_copies", without)


def _skip_a_restore(patch: pytest.MonkeyPatch) -> None:
    copies = Restoring._copies

    def without(self, restore):
        answer = copies(self, restore)
        return type(answer)(answer.model, answer.saves, answer.moves, answer.restores[1:])

    patch.setattr(Restoring, "_copies", without)


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
    ],
)
def test_the_data_shows_a_planted_fault(fault: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    # Without the invariants, so that it is lost tokens that show it.
    monkeypatch.setattr(KvCache, "check", lambda _: None)
    with pytest.raises(AssertionError):
        for seed, num_blocks, num_frames, _ in CONDITIONS:
            walk = SharingWalk(World.build(seed, num_blocks, num_frames, QUOTAS))
            for _ in range(1000):
                walk.step()
