"""Short sentences for scripted tests of shared blocks: sequences that compute, lend and return."""

import numpy as np

from muxcluster.core.job import Side, SlotCopies
from muxcluster.kvcache.model import Shortage
from tests.kvcache.world import MODELS, World


class Script:
    """A world in which one thing happens after the other."""

    def __init__(
        self, num_blocks: int, num_host_blocks: int = 40, *, saves_lazily: bool = True
    ) -> None:
        quotas = dict.fromkeys(MODELS, num_blocks)
        self.world = World.build(0, num_blocks, num_host_blocks, quotas, saves_lazily=saves_lazily)
        self.cache = self.world.cache

    def begin(self, model: str, slot: int, side: Side, count: int, path: tuple[int, ...] = ()):
        """A new sequence computes `count` tokens."""
        self.world.open(model, slot, list(path), side)
        self.compute(model, slot, count - len(self.world.texts[model, slot].tokens))

    def compute(self, model: str, slot: int, count: int) -> list[SlotCopies]:
        """A whole job in which the sequence computes `count` tokens; what it copied."""
        job_id, copies = self.start(model, slot, count)
        self.finish(job_id)
        return copies

    def start(self, model: str, slot: int, count: int) -> tuple[int, list[SlotCopies]]:
        """A job is launched in which the sequence computes `count` tokens, restored if need be."""
        world, text, job_id = self.world, self.world.texts[model, slot], self.world.next()
        copies: list[SlotCopies] = []
        slots, end = np.array([slot], dtype=np.int32), len(text.tokens) + count
        if self.cache.of(model).num_lent[slot]:
            restored = world.restore(model, [slot], job_id)
            assert not isinstance(restored, Shortage)
            copies.append(restored)
        assert world.grow(model, {slot: end})
        if text.side is Side.LEFT:
            copies += self.cache.of(model).saves(slots, np.array([end], dtype=np.int32), job_id)
        world.launch(job_id, model, {slot: count}, copies)
        world.check()
        return job_id, copies

    def finish(self, job_id: int) -> None:
        """The job runs to its end."""
        for _ in range(3):
            self.world.advance(job_id)
        self.world.end(job_id, succeeded=True)
        self.world.check()

    def fail(self, job_id: int) -> None:
        """The job did all it had to do, and its worker died before it said so."""
        for _ in range(3):
            self.world.advance(job_id)
        self.world.end(job_id, succeeded=False)
        self.world.check()

    def lend(self, model: str, slot: int, blocks: int) -> int:
        lent = self.world.lend(model, slot, blocks)
        self.world.check()
        return lent

    def close(self, model: str, slot: int) -> None:
        self.world.close(model, slot)
        self.world.check()


def num_saved(copies: list[SlotCopies]) -> int:
    return sum(int(each.saves[:, 2].sum()) for each in copies)
