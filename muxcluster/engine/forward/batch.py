"""The tokens of one forward, flattened, with what attention needs to know about their rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.core.job import SharedPrefixes
from muxcluster.engine.forward.prefix_rows import fits, fixed_groups, group_arrays


@dataclass(frozen=True, slots=True, eq=False)
class GroupOffsets:
    """Rows that share prefixes, as arguments of `prefix_attention`."""

    # int64 [groups + 1]; group i is rows offsets[i] to offsets[i + 1], possibly none
    offsets: Tensor
    prefix_lengths: Tensor  # int64 [groups], 0 for rows that share nothing


@dataclass(frozen=True, slots=True, eq=False)
class SingleRows:
    """Rows of one token each."""

    tokens: Tensor  # int64 [rows], where they lie in the flattened batch
    table_rows: Tensor  # int64 [rows]
    lengths: Tensor  # int64 [rows], context including the token itself
    groups: GroupOffsets | None = None  # None where no prefix is shared


@dataclass(frozen=True, slots=True, eq=False)
class ManyRows:
    """Rows of several tokens."""

    tokens: Tensor  # int64 [sum of counts], where they lie in the batch
    # table_rows, starts: int64 [rows]
    table_rows: Tensor
    starts: Tensor
    query_offsets: Tensor  # int64 [rows + 1] into `tokens`


@dataclass(frozen=True, slots=True, eq=False)
class FreshRows:
    """Rows of several tokens that start at position 0: all keys that they see are their own."""

    rows: ManyRows  # as for other rows of several tokens
    offsets: Tensor  # its query_offsets in int32
    max_tokens: int  # of the longest row


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatch:
    """The tokens of one forward, as tensors on its device."""

    # token_slots, positions: int64 [tokens]
    token_rows: Tensor
    positions: Tensor
    ends: NDArray[np.int64]  # int64 [rows], each row's last token
    # single, many, fresh: the rows by kind; None where there is none of it, never all
    single: SingleRows | None
    # of `many`: rows of several tokens that follow earlier ones, of a chunk or of a cached prefix
    many: ManyRows | None
    fresh: FreshRows | None


@dataclass(frozen=True, slots=True, eq=False)
class HostBatch:
    """A `TokenBatch` in host arrays.

    The same fields, those of rows by kind one after the other, then those of groups if there are
    any.
    """

    arrays: tuple[NDArray[np.integer], ...]
    ends: NDArray[np.int64]
    num_single: int
    num_many: int
    most_fresh: int  # tokens of the longest fresh row, 0 where there is none

    def on_device(self, tensors: Sequence[Tensor]) -> TokenBatch:
        """Return the batch. tensors: `arrays`, on the device."""
        token_rows, positions = tensors[:2]
        single, many, fresh, grouped = tensors[2:5], tensors[5:9], tensors[9:14], tensors[14:]
        groups = GroupOffsets(*grouped) if grouped else None
        first = FreshRows(ManyRows(*fresh[:4]), fresh[4], self.most_fresh)
        return TokenBatch(
            token_rows=token_rows,
            positions=positions,
            ends=self.ends,
            single=SingleRows(single[0], single[1], single[2], groups) if self.num_single else None,
            many=ManyRows(*many) if self.num_many else None,
            fresh=first if self.most_fresh else None,
        )


def host_batch(
    table_rows: NDArray[np.int32],
    starts: NDArray[np.int32],
    counts: NDArray[np.int32],
    prefixes: SharedPrefixes | None = None,
    *,
    has_fixed_groups: bool = False,
) -> HostBatch:
    """Return the batch of rows that process `counts` tokens each from position `starts` on.

    prefixes: the rows of a group are side by side, rows of several tokens are in none.
    has_fixed_groups: make as many groups as `prefix_rows.fixed_groups` makes for the number of rows
    of one token, or none if they do not fit.
    """
    counts = counts.astype(np.int64)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    row_of = np.repeat(np.arange(len(table_rows)), counts)
    positions = np.arange(offsets[-1]) - offsets[row_of] + starts[row_of]
    is_single = counts == 1
    is_fresh = ~is_single & (starts == 0)
    is_many = ~(is_single | is_fresh)
    single = np.flatnonzero(is_single)

    def several(chosen: NDArray[np.bool_]) -> tuple[NDArray[np.integer], ...]:
        """Return the fields of `ManyRows` of the chosen rows."""
        rows = np.flatnonzero(chosen)
        tokens = np.flatnonzero(chosen[row_of])
        return (
            tokens,
            table_rows[rows],
            starts[rows],
            np.concatenate(([0], np.cumsum(counts[rows]))),
        )

    fresh = several(is_fresh)
    arrays: tuple[NDArray[np.integer], ...] = (
        table_rows[row_of],
        positions,
        offsets[single],
        table_rows[single],
        starts[single] + 1,
        *several(is_many),
        *fresh,
    )
    grouped: tuple[NDArray[np.integer], ...] = ()
    if prefixes is not None and not has_fixed_groups:
        grouped = group_arrays(prefixes.of(single))
    elif prefixes is not None and len(single) and fits(prefixes.of(single), len(single)):
        grouped = fixed_groups(prefixes.of(single), len(single))
    wide = [array.astype(np.int64) for array in (*arrays, *grouped)]
    wide.insert(len(arrays), fresh[-1].astype(np.int32))
    return HostBatch(
        arrays=tuple(wide),
        ends=offsets[1:] - 1,
        num_single=len(single),
        num_many=int(is_many.sum()),
        most_fresh=int(counts[is_fresh].max(initial=0)),
    )


def token_batch(
    table_rows: NDArray[np.int32],
    starts: NDArray[np.int32],
    counts: NDArray[np.int32],
    device: torch.device,
    prefixes: SharedPrefixes | None = None,
) -> TokenBatch:
    """As `host_batch`, each array copied to `device` by itself: free of cost on the CPU only."""
    batch = host_batch(table_rows, starts, counts, prefixes)
    return batch.on_device([torch.from_numpy(array).to(device) for array in batch.arrays])
