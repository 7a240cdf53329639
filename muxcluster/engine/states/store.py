"""States of sequences in the unit's pool: read and written by layer, for many rows at once."""

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.core.kvshape import KvShape
from muxcluster.engine.memory.arena import ModelArena
from muxcluster.engine.states.layout import HEAD_BYTES, StateLayout, StateTensor
from muxcluster.engine.states.mixers import MixerStates

_WORDS: Final = {2: torch.int16, 4: torch.int32}


class StateStore:
    """The states of one model's rows, in their state columns.

    They fill the token places of their blocks, so whatever moves whole columns moves them.
    """

    def __init__(
        self, pool: Tensor, arena: ModelArena, shape: KvShape, layout: StateLayout
    ) -> None:
        """pool: uint8 [num_blocks, block_bytes]. shape: of the model's keys and values."""
        self._arena = arena
        self._layout = layout
        self._word_bytes = shape.itemsize
        words = pool.view(_WORDS[shape.itemsize]).view(2 * len(pool), -1)
        # [2 * num_blocks, words of a half]: bytes behind the last token place are left out
        self._halves = words[:, : arena.block_tokens * shape.head_dim]
        self._ends = layout.ends(self._halves.shape[1] * self._word_bytes)

    def halves(self, table_rows: NDArray[np.integer]) -> Tensor:
        """Return the halves of blocks that hold the states of `table_rows`, int64 [rows, halves].

        In the order of `StateLayout`; those of no state are behind.
        """
        where = torch.from_numpy(table_rows.astype(np.int64)).to(self._halves.device)
        blocks = self._arena.state_tables[where].flatten(1).long()
        return torch.stack((2 * blocks, 2 * blocks + 1), dim=-1).flatten(1)

    def lengths(self, halves: Tensor) -> NDArray[np.int64]:
        """Return of how many tokens the states of each row are, int64 [rows].

        Anything where a row has none yet, or a forward that was to change them did not end.
        """
        heads = self._halves[halves[:, 0], : HEAD_BYTES // self._word_bytes]
        found: NDArray[np.int64] = heads.contiguous().view(torch.int64)[:, 0].cpu().numpy()
        return found

    def mark(self, halves: Tensor, lengths: NDArray[np.integer]) -> None:
        """Note that the states of each row are of lengths[i] tokens; -1: of none."""
        heads = torch.from_numpy(lengths.astype(np.int64)).to(halves.device)
        words = heads.view(self._halves.dtype).view(len(heads), -1)
        self._halves[halves[:, 0], : words.shape[1]] = words

    def read(self, halves: Tensor, layer: int) -> MixerStates:
        """Return the states of a layer in memory of their own. halves: of the rows."""
        data = self._halves[halves[:, self._ends[layer] : self._ends[layer + 1]]].flatten(1)
        sizes = self._layout.layers[layer]
        conv = self._part(data, sizes.conv, 0)
        return MixerStates(conv, self._part(data, sizes.recurrent, sizes.conv.taken_bytes))

    def write(self, halves: Tensor, layer: int, states: MixerStates) -> None:
        """Store the states of a layer. halves: of the rows."""
        assert states.conv is not None and states.recurrent is not None, "states are missing"
        places = halves[:, self._ends[layer] : self._ends[layer + 1]]
        data = self._halves.new_zeros((*places.shape, self._halves.shape[1]))
        words, sizes = data.view(len(data), -1), self._layout.layers[layer]
        self._put(words, states.conv, sizes.conv, 0)
        self._put(words, states.recurrent, sizes.recurrent, sizes.conv.taken_bytes)
        self._halves[places] = data

    def _words_of(self, of: StateTensor, start_bytes: int) -> slice:
        start = start_bytes // self._word_bytes
        return slice(start, start + of.num_bytes // self._word_bytes)

    def _part(self, data: Tensor, of: StateTensor, start_bytes: int) -> Tensor:
        """Return one tensor of words [rows, n]: [rows, *of.shape]."""
        mine = data[:, self._words_of(of, start_bytes)].contiguous()
        return mine.view(of.dtype).view(len(data), *of.shape)

    def _put(self, words: Tensor, states: Tensor, of: StateTensor, start_bytes: int) -> None:
        """Write one tensor [rows, *of.shape] into words [rows, n]."""
        mine = states.to(of.dtype).reshape(len(words), -1).contiguous()
        words[:, self._words_of(of, start_bytes)] = mine.view(words.dtype)
