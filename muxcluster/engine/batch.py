"""The tokens of one forward, flattened, with what attention needs to know about their rows."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class SingleRows:
    """Rows of one token each. tokens: int64 [rows], where they lie in the flattened batch.

    slots: int64 [rows]. lengths: int64 [rows], context including the token itself.
    """

    tokens: Tensor
    slots: Tensor
    lengths: Tensor


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


def token_batch(
    slots: NDArray[np.int32],
    starts: NDArray[np.int32],
    counts: NDArray[np.int32],
    device: torch.device,
) -> TokenBatch:
    """The batch of rows that process `counts` tokens each from position `starts` on."""
    counts = counts.astype(np.int64)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    row_of = np.repeat(np.arange(len(slots)), counts)
    positions = np.arange(offsets[-1]) - offsets[row_of] + starts[row_of]
    is_single = counts == 1
    single = np.flatnonzero(is_single)
    many = np.flatnonzero(~is_single)
    return TokenBatch(
        token_slots=_tensor(slots[row_of], device),
        positions=_tensor(positions, device),
        ends=offsets[1:] - 1,
        single=None
        if not len(single)
        else SingleRows(
            tokens=_tensor(offsets[single], device),
            slots=_tensor(slots[single], device),
            lengths=_tensor(starts[single] + 1, device),
        ),
        many=None
        if not len(many)
        else ManyRows(
            tokens=_tensor(np.flatnonzero(~is_single[row_of]), device),
            slots=_tensor(slots[many], device),
            starts=_tensor(starts[many], device),
            query_offsets=_tensor(np.concatenate(([0], np.cumsum(counts[many]))), device),
        ),
    )


def _tensor(array: NDArray[np.integer], device: torch.device) -> Tensor:
    return torch.from_numpy(array.astype(np.int64)).to(device)
