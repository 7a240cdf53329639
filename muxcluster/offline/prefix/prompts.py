"""The prompts of a batch job as one flat array, each a run of token ids or of block ids."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.errors import InvalidValue
from muxcluster.offline.prefix.ranges import joined_ranges


@dataclass(frozen=True, slots=True, eq=False)
class Prompts:
    """Prompts one after the other, as they arrived.

    ids: int32 [total]; equal ids at equal places after equal ids are the same tokens.
    offsets: int64 [n + 1]; prompt i is ids[offsets[i]:offsets[i + 1]].
    lengths: int64 [n], tokens of each prompt.
    id_tokens: tokens that one id stands for: 1, or the block size of a trace of block ids, whose
        last id of a prompt may stand for fewer.
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    id_tokens: int = 1

    def __len__(self) -> int:
        return len(self.lengths)


def flat_prompts(ids: NDArray[np.int32], offsets: NDArray[np.int64]) -> Prompts:
    """Prompts of token ids that lie in one array already; nothing is copied.

    Raises InvalidValue where there is no prompt, or an empty one.
    """
    return _checked(Prompts(ids, offsets, np.diff(offsets)))


def token_prompts(prompts: Sequence[NDArray[np.int32]]) -> Prompts:
    """`prompts`: the token ids of each, int32 [length]. Raises InvalidValue as above."""
    return flat_prompts(*_joined(prompts))


def block_prompts(
    blocks: Sequence[Sequence[int]], lengths: Sequence[int], block_tokens: int
) -> Prompts:
    """Prompts known by the ids of their blocks, as traces give them.

    lengths: tokens of each prompt, more than its blocks but the last hold and no more than all do.
    Raises InvalidValue as above, and for a length that its blocks cannot hold.
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
    """Some of the prompts, `numbers` (int64, at least one), in that order; a copy."""
    counts = np.diff(prompts.offsets)[numbers]
    offsets = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts)))
    ids = prompts.ids[joined_ranges(prompts.offsets[numbers], counts)]
    return Prompts(ids, offsets, prompts.lengths[numbers], prompts.id_tokens)
