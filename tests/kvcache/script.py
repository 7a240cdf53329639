"""Short sentences for scripted tests of shared blocks: sequences that compute, lend and return."""

import numpy as np

from muxcluster.core.job import Side, SlotCopies
from muxcluster.kvcache.pool import Shortage
from tests.kvcache.world import MODELS, World


class Script:
    """A world in which one thing happens after the other."""

    def __init__(
        self, num_blocks: int, num_host_blocks: int = 40, *, saves_lazily: bool = True
    ) -> None:
        quotas = dict.fromkeys(MODELS, num_blocks)
        self.world = World.build(0, num_blocks, num_host_blocks, quotas, saves_lazily=saves_lazily)
        self.cache = self.world.cache

    def begin(self, model: str, row: int, side: Side, count: int, path: tuple[int, ...] = ()):
        """A new sequence computes `count` tokens."""
        self.world.open(model, row, list(path), side)
        self.compute(model, row, count - len(self.world.texts[model, row].tokens))

    def compute(self, model: str, row: int, count: int) -> list[SlotCopies]:
        """A whole job in which the sequence computes `count` tokens; what it copied."""
        job_id, copies = self.start(model, row, count)
        self.finish(job_id)
        return copies

    def start(self, model: str, row: int, count: int) -> tuple[int, list[SlotCopies]]:
        """A job is launched in which the sequence computes `count` tokens, restored if need be."""
        world, text, job_id = self.world, self.world.texts[model, row], self.world.next()
        copies: list[SlotCopies] = []
        rows, end = np.array([row], dtype=np.int32), len(text.tokens) + count
        if self.cache.of(model).num_lent[row]:
            restored = world.restore(model, [row], job_id)
            assert not isinstance(restored, Shortage)
            copies.append(restored)
        assert world.grow(model, {row: end})
        if text.side is Side.LEFT:
            copies += self.cache.of(model).lending.saves(
                rows, np.array([end], dtype=np.int32), job_id
            )
        world.launch(job_id, model, {row: count}, copies)
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

    def lend(self, model: str, row: int, blocks: int) -> int:
        lent = self.world.lend(model, row, blocks)
        self.world.check()
        return lent

    def close(self, model: str, row: int) -> None:
        self.world.close(model, row)
        self.world.check()


def num_saved(copies: list[SlotCopies]) -> int:
    return sum(int(each.saves[:, 2].sum()) for each in copies)
