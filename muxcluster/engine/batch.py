"""The tokens of one forward, flattened, with what attention needs to know about their rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.core.job import SharedPrefixes
from muxcluster.engine.prefix_rows import group_arrays


@dataclass(frozen=True, slots=True, eq=False)
class GroupOffsets:
    """Rows that share prefixes, as `prefix_attention` wants them.

    offsets: int64 [groups + 1]; group i is rows offsets[i] to offsets[i + 1], possibly none.
    prefix_lengths: int64 [groups], 0 for rows that share nothing.
    """

    offsets: Tensor
    prefix_lengths: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class SingleRows:
    """Rows of one token each. tokens: int64 [rows], where they lie in the flattened batch.

    slots: int64 [rows]. lengths: int64 [rows], context including the token itself.
    groups: None where no prefix is shared.
    """

    tokens: Tensor
    slots: Tensor
    lengths: Tensor
    groups: GroupOffsets | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ManyRows:
    """Rows of several tokens. tokens: int64 [sum of counts], where they lie in the batch.

    slots, starts: int64 [rows]. query_offsets: int64 [rows + 1] into `tokens`.
    """

    tokens: Tensor
    slots: Tensor
    starts: Tensor
    query_offsets: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatch:
    """token_slots, positions: int64 [tokens]. ends: int64 [rows], each row's last token.

    single, many: the rows by kind; None where there is none of it, never both.
    """

    token_slots: Tensor
    positions: Tensor
    ends: NDArray[np.int64]
    single: SingleRows | None
    many: ManyRows | None


@dataclass(frozen=True, slots=True, eq=False)
class HostBatch:
    """A `TokenBatch` in arrays: the same fields, those of rows by kind one after the other, then
    those of groups where there are any."""

    arrays: tuple[NDArray[np.int64], ...]
    ends: NDArray[np.int64]
    num_single: int
    num_many: int

    def on_device(self, tensors: Sequence[Tensor]) -> TokenBatch:
        """The batch; tensors: `arrays`, on the device."""
        token_slots, positions = tensors[:2]
        single, many, grouped = tensors[2:5], tensors[5:9], tensors[9:]
        groups = GroupOffsets(*grouped) if grouped else None
        return TokenBatch(
            token_slots=token_slots,
            positions=positions,
            ends=self.ends,
            single=SingleRows(single[0], single[1], single[2], groups) if self.num_single else None,
            many=ManyRows(*many) if self.num_many else None,
        )


def host_batch(
    slots: NDArray[np.int32],
    starts: NDArray[np.int32],
    counts: NDArray[np.int32],
    prefixes: SharedPrefixes | None = None,
) -> HostBatch:
    """The batch of rows that process `counts` tokens each from position `starts` on.

    prefixes: the rows of a group are side by side, rows of several tokens are in none.
    """
    counts = counts.astype(np.int64)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    row_of = np.repeat(np.arange(len(slots)), counts)
    positions = np.arange(offsets[-1]) - offsets[row_of] + starts[row_of]
    is_single = counts == 1
    single = np.flatnonzero(is_single)
    many = np.flatnonzero(~is_single)
    arrays: tuple[NDArray[np.integer], ...] = (
        slots[row_of],
        positions,
        offsets[single],
        slots[single],
        starts[single] + 1,
        np.flatnonzero(~is_single[row_of]),
        slots[many],
        starts[many],
        np.concatenate(([0], np.cumsum(counts[many]))),
    )
    if prefixes is not None:
        arrays += group_arrays(prefixes.of(single))
    return HostBatch(
        arrays=tuple(array.astype(np.int64) for array in arrays),
        ends=offsets[1:] - 1,
        num_single=len(single),
        num_many=len(many),
    )


def token_batch(
    slots: NDArray[np.int32],
    starts: NDArray[np.int32],
    counts: NDArray[np.int32],
    device: torch.device,
    prefixes: SharedPrefixes | None = None,
) -> TokenBatch:
    """As `host_batch`, each array copied to `device` by itself: free on the CPU only."""
    batch = host_batch(slots, starts, counts, prefixes)
    return batch.on_device([torch.from_numpy(array).to(device) for array in batch.arrays])
