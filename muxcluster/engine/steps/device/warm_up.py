"""Steps that are tried before a worker is ready, so that no kernel is compiled while it serves.

Triton compiles a kernel again where its constants differ, and where an integer argument becomes or
ceases to be 1 or a multiple of 16. In our steps these depend on:

- tokens of a row of several tokens, on average: the tiling of prefill attention, a power of two;
- rows of one token: whether decode attention splits the context, and, where they share prefixes,
  how many splits that attention makes, chosen by the next power of two;
- whether a row of several tokens starts at position 0: it attends without the pool.

tests/engine/gpu/test_kernel_warm_up.py shows that random steps meet no other kernels.
"""

# A compilation takes 0.9 to 3.7 s.

from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import SharedPrefixes
from muxcluster.engine.forward.batch import HostBatch, host_batch

_NOWHERE = -1  # position of a token whose key and value are not written

# Queries times heads of the largest tile of prefill attention; longer rows have the same tiling.
_TILE_MEMBERS = 128


@dataclass(frozen=True, slots=True)
class WarmUpStep:
    """A step of rows of no sequence."""

    num_single: int = 0  # rows of one token
    counts: tuple[int, ...] = ()  # tokens of the others
    start: int = 1  # where those begin
    shares: bool = False  # True if attention of the single rows reads shared prefixes once

    def batch(self) -> HostBatch:
        """Return the step's tokens: they read the begin of table row 0 and write nothing."""
        counts = np.array([1] * self.num_single + list(self.counts), dtype=np.int32)
        table_rows = np.zeros_like(counts)
        starts = np.where(counts > 1, np.int32(self.start), np.int32(0))
        prefixes = SharedPrefixes(table_rows, table_rows) if self.shares else None
        return nowhere(host_batch(table_rows, starts, counts, prefixes, has_fixed_groups=True))


def nowhere(batch: HostBatch) -> HostBatch:
    """Return the batch with all tokens at no position, so that it writes no keys and values."""
    token_rows, positions, *others = batch.arrays
    arrays = (token_rows, np.full_like(positions, _NOWHERE), *others)
    return HostBatch(arrays, batch.ends, batch.num_single, batch.num_many, batch.most_fresh)


def prompt_steps(max_rows: int, max_tokens: int) -> list[WarmUpStep]:
    """Return steps that compile all that a step with a row of several tokens can need.

    max_rows: of a step. max_tokens: of a sequence.
    """
    lengths = takewhile(lambda n: n <= min(_TILE_MEMBERS, max_tokens - 1), _powers(2))
    chunks = [WarmUpStep(counts=(length,)) for length in lengths]
    most = max(1, max_rows - 1)
    mixed = [WarmUpStep(num_single=num_single, counts=(2,)) for num_single in sorted({1, most})]
    return [*chunks, WarmUpStep(counts=(2,), start=0), *mixed]


def token_steps(max_rows: int, *, shares: bool) -> list[WarmUpStep]:
    """Return steps that compile all that a step of rows of one token can need.

    shares: some steps read shared prefixes.
    """
    steps = [WarmUpStep(num_single=num_rows) for num_rows in sorted({1, max_rows})]
    if shares:
        sizes = [*takewhile(lambda size: size < max_rows, _powers(1)), max_rows]
        steps += [WarmUpStep(num_single=size, shares=True) for size in sizes]
    return steps


def _powers(first: int) -> NDArray[np.int64]:
    return first * 2 ** np.arange(32)
