"""Sizes of the states of one sequence, and where they lie in its blocks."""

import math
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import nn

from muxcluster.engine.states.mixers import Foreign, MixerStates, mixed, mixers_of

ALIGNMENT = 8  # bytes at whose multiples tensors lie
HEAD_BYTES = 8  # of the number of tokens that states are of, int64

_NUM_TOKENS = 2


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One tensor of a layer's state, of one sequence."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def taken_bytes(self) -> int:
        """Bytes with those that the next tensor leaves out before it."""
        return -(-self.num_bytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class LayerStates:
    """The states of one layer."""

    conv: StateTensor
    recurrent: StateTensor

    def num_halves(self, half_bytes: int) -> int:
        """Return how many halves of blocks they take."""
        return -(-(self.conv.taken_bytes + self.recurrent.taken_bytes) // half_bytes)


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The states of all layers that have some, in order.

    In the halves of a sequence's blocks the first one holds the number of tokens that the states
    are of. Each layer's begin at a half of their own: convolution, then recurrent state.
    """

    layers: tuple[LayerStates, ...]

    def ends(self, half_bytes: int) -> tuple[int, ...]:
        """Return the half behind the head's, and behind each layer's."""
        sizes = (each.num_halves(half_bytes) for each in self.layers)
        return tuple(accumulate(sizes, initial=-(-HEAD_BYTES // half_bytes)))


@torch.inference_mode()
def layout_of(model: Foreign) -> StateLayout:
    """Run a few tokens through each layer with states to find out what it keeps."""
    weight = next(model.parameters())
    size = model.config.get_text_config(decoder=True).hidden_size
    hidden = torch.zeros((1, _NUM_TOKENS, size), dtype=weight.dtype, device=weight.device)
    return StateLayout(tuple(_states(each, hidden) for each in mixers_of(model)))


def _states(mixer: nn.Module, hidden: torch.Tensor) -> LayerStates:
    states = MixerStates()
    mixed(mixer, hidden, states)
    assert states.conv is not None and states.recurrent is not None, "a layer without its states"
    conv, recurrent = (
        StateTensor(tuple(each.shape[1:]), each.dtype) for each in (states.conv, states.recurrent)
    )
    return LayerStates(conv, recurrent)
