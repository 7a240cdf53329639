"""Which steps are tried before a worker is ready, so that no kernel is compiled while it serves.

Triton compiles a kernel anew (0.9 to 3.7 s) where its constants differ, and where an integer that
it is launched with becomes or ceases to be 1 or a multiple of 16. In our steps these depend on:

- tokens of a row of several tokens, on average: the tiling of prefill attention, a power of two;
- rows of one token: whether decode attention splits the context, and, where they share prefixes,
  how many splits that attention makes, chosen by the next power of two;
- whether a row of several tokens starts at position 0: it attends without the pool.

tests/engine_gpu/test_kernel_warm_up.py shows that random steps meet no other kernels.
"""

from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import SharedPrefixes
from muxcluster.engine.forward.batch import HostBatch, host_batch

_NOWHERE = -1
"""The position of a token whose key and value are not written."""

_TILE_MEMBERS = 128
"""Queries times heads of prefill attention's largest tile: longer rows have the same tiling."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """A step of rows of no sequence.

    num_single: rows of one token. counts: tokens of the others. start: where those begin. shares:
    the single rows go through attention that reads shared prefixes once.
    """

    num_single: int = 0
    counts: tuple[int, ...] = ()
    start: int = 1
    shares: bool = False

    def batch(self) -> HostBatch:
        """The step's tokens: they read the first places of slot 0's blocks and write nothing."""
        counts = np.array([1] * self.num_single + list(self.counts), dtype=np.int32)
        slots = np.zeros_like(counts)
        starts = np.where(counts > 1, np.int32(self.start), np.int32(0))
        prefixes = SharedPrefixes(slots, slots) if self.shares else None
        return nowhere(host_batch(slots, starts, counts, prefixes, has_fixed_groups=True))


def nowhere(batch: HostBatch) -> HostBatch:
    """The batch with all tokens at no position, so that it writes no keys and values."""
    token_slots, positions, *others = batch.arrays
    arrays = (token_slots, np.full_like(positions, _NOWHERE), *others)
    return HostBatch(arrays, batch.ends, batch.num_single, batch.num_many, batch.most_fresh)


def prompt_steps(max_rows: int, max_tokens: int) -> list[WarmUp]:
    """Steps that meet what any step with a row of several tokens can.

    max_rows: of a step. max_tokens: of a sequence.
    """
    lengths = takewhile(lambda n: n <= min(_TILE_MEMBERS, max_tokens - 1), _powers(2))
    chunks = [WarmUp(counts=(length,)) for length in lengths]
    most = max(1, max_rows - 1)
    mixed = [WarmUp(num_single=num_single, counts=(2,)) for num_single in sorted({1, most})]
    return [*chunks, WarmUp(counts=(2,), start=0), *mixed]


def token_steps(max_rows: int, *, shares: bool) -> list[WarmUp]:
    """Steps that meet what any step of rows of one token can. shares: some read shared prefixes."""
    steps = [WarmUp(num_single=num_rows) for num_rows in sorted({1, max_rows})]
    if shares:
        sizes = [*takewhile(lambda size: size < max_rows, _powers(1)), max_rows]
        steps += [WarmUp(num_single=size, shares=True) for size in sizes]
    return steps


def _powers(first: int) -> NDArray[np.int64]:
    return first * 2 ** np.arange(32)
