"""The prompts of a batch job as one flat array, each a run of token ids or of block ids."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.errors import InvalidValue
from muxcluster.offline.prefix.ranges import joined_ranges


@dataclass(frozen=True, slots=True, eq=False)
class Prompts:
    """Prompts in one flat array, in order of arrival."""

    # int32 [total]; equal ids at equal places after equal ids are the same tokens.
    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]  # int64 [n + 1]; prompt i is ids[offsets[i]:offsets[i + 1]]
    lengths: NDArray[np.int64]  # int64 [n], tokens of each prompt
    # Tokens per id: 1, or the block size of a trace of block ids, where the last id of a prompt may
    # stand for fewer.
    id_tokens: int = 1

    def __len__(self) -> int:
        return len(self.lengths)


def flat_prompts(ids: NDArray[np.int32], offsets: NDArray[np.int64]) -> Prompts:
    """Return prompts of token ids that are in one array already; nothing is copied.

    Raises InvalidValue where there is no prompt, or an empty one.
    """
    return _checked(Prompts(ids, offsets, np.diff(offsets)))


def token_prompts(prompts: Sequence[NDArray[np.int32]]) -> Prompts:
    """Return `prompts` (token ids of each, int32 [length]) as one. Raises as `flat_prompts`."""
    return flat_prompts(*_joined(prompts))


def block_prompts(
    blocks: Sequence[Sequence[int]], lengths: Sequence[int], block_tokens: int
) -> Prompts:
    """Return prompts given by the ids of their blocks, as in traces.

    lengths: tokens of each prompt, which must need exactly its blocks. Raises InvalidValue as
    `flat_prompts`, and for a length that does not fit the blocks.
    """
    ids, offsets = _joined([np.asarray(each, dtype=np.int32) for each in blocks])
    counts = np.diff(offsets)
    tokens = np.asarray(lengths, dtype=np.int64)
    prompts = _checked(Prompts(ids, offsets, tokens, block_tokens))
    wrong = np.flatnonzero(-(-tokens // block_tokens) != counts)
    if len(wrong):
        number = int(wrong[0])
        raise InvalidValue(
            f"prompt {number}: {tokens[number]} tokens cannot be {counts[number]} blocks "
            f"of {block_tokens}",
            "prompt",
        )
    return prompts


def _joined(parts: Sequence[NDArray[np.int32]]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    offsets = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    ids = np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)
    return ids.astype(np.int32, copy=False), offsets


def _checked(prompts: Prompts) -> Prompts:
    if not len(prompts):
        raise InvalidValue("expected at least one prompt, found none", "prompt")
    empty = np.flatnonzero(np.diff(prompts.offsets) <= 0)
    if len(empty):
        raise InvalidValue(f"prompt {empty[0]} is empty: expected at least one token", "prompt")
    return prompts


def take_prompts(prompts: Prompts, numbers: NDArray[np.int64]) -> Prompts:
    """Return a copy of the prompts `numbers` (int64, at least one), in that order."""
    counts = np.diff(prompts.offsets)[numbers]
    offsets = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts)))
    ids = prompts.ids[joined_ranges(prompts.offsets[numbers], counts)]
    return Prompts(ids, offsets, prompts.lengths[numbers], prompts.id_tokens)
