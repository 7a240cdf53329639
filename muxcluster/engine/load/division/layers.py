"""Layers whose weights are divided over ranks (Megatron-LM, Shoeybi et al. 2019, section 3).

A linear divided by output features needs no class: it is a smaller `nn.Linear`.
"""

from copy import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from muxcluster.engine.load.division.group import RankGroup


class SummedLinear(nn.Module):
    """A linear divided by input features: the ranks' results are added, then the bias once."""

    def __init__(self, part: nn.Linear, group: RankGroup) -> None:
        """part: this rank's columns; its bias is whole and is moved out of it."""
        super().__init__()
        self.bias = part.bias
        part.register_parameter("bias", None)
        self.part = part
        self._group = group

    def with_part(self, part: nn.Module) -> "SummedLinear":
        """Return the sum of other results, with the same bias and ranks. part: without a bias."""
        other = copy(self)
        other._modules = {**self._modules, "part": part}
        return other

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [..., in_features / ranks] to [..., out_features], the same on every rank."""
        summed = self._group.all_reduce(self.part(inputs))
        return summed if self.bias is None else summed.add_(self.bias)


class SummedExperts(nn.Module):
    """Experts that are all divided by their inner features: the ranks' results are added."""

    # Routers are whole, so all ranks choose the same experts for a token.

    def __init__(self, part: nn.Module, group: RankGroup) -> None:
        super().__init__()
        self.part = part
        self._group = group

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return what the experts make of hidden states, the same on every rank."""
        return self._group.all_reduce(self.part(*inputs).contiguous())


class GatheredLinear(nn.Module):
    """A linear divided by output features whose result every rank gets whole."""

    # Logits are bit by bit the same on all ranks, so all of them sample the same tokens.

    def __init__(self, part: nn.Linear, out_features: int, group: RankGroup) -> None:
        """part: this rank's rows, fewer on the last rank if they do not divide evenly."""
        super().__init__()
        self.part = part
        self.out_features = out_features
        self._group = group
        self._rows = -(-out_features // group.size)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [..., in_features] to [..., out_features]."""
        part = self.part(inputs)
        missing = self._rows - part.shape[-1]
        whole = self._group.gather(pad(part, (0, missing)) if missing else part)
        return whole[..., : self.out_features]


class SummedEmbedding(nn.Module):
    """Token embeddings divided by vocabulary: one rank has a token's row, the others add zeros."""

    def __init__(self, part: nn.Embedding, first: int, group: RankGroup) -> None:
        """part: rows of the tokens from `first` on; it may scale what it looks up."""
        super().__init__()
        part.padding_idx = None  # of the whole vocabulary, and for training only
        self.part = part
        self._first = first
        self._group = group

    def forward(self, tokens: Tensor) -> Tensor:
        """Map int64 [...] to [..., hidden_size]."""
        places = tokens - self._first
        is_here = (places >= 0) & (places < len(self.part.weight))
        rows = self.part(torch.where(is_here, places, 0))
        return self._group.all_reduce(rows.masked_fill_(~is_here.unsqueeze(-1), 0))
