"""A linear that adds what adapters make of their tokens to its outputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from muxcluster.engine.adapters.low_rank import LowRank
from muxcluster.engine.adapters.tokens import CurrentTokens
from muxcluster.kernels.products.low_rank_update import low_rank_update


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """What adapters add to some outputs of a product, side by side."""

    first: int  # of the outputs
    weights: LowRank

    @property
    def columns(self) -> slice:
        """The columns of the product that it adds to."""
        return slice(self.first, self.first + self.weights.up.shape[1])


class OtherTokens(RuntimeError):
    """A linear got other tokens than those of its forward, as experts do.

    Nothing says which adapters these have.
    """


class AdaptedLinear(nn.Module):
    """A linear, or several that are one product, with the updates of all adapters."""

    def __init__(
        self, base: Any, out_features: int, updates: Sequence[Update], current: CurrentTokens
    ) -> None:
        """base: maps [..., in_features] to a new tensor [..., out_features]."""
        super().__init__()
        self.base = base
        self.out_features = out_features
        self.updates = updates
        self._current = current

    @property
    def weight(self) -> Tensor:
        """The base's, which some models look at in their forward."""
        weight: Tensor = self.base.weight
        return weight

    @property
    def bias(self) -> Tensor | None:
        """The base's."""
        bias: Tensor | None = self.base.bias
        return bias

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [..., in_features] to [..., out_features]."""
        return self._updated(self.base(inputs), inputs)

    def plus(self, inputs: Tensor, added: Tensor) -> Tensor:
        """Return `forward(inputs) + added`; `added` is like the result."""
        return self._updated(self.base.plus(inputs, added), inputs)

    def _updated(self, outputs: Tensor, inputs: Tensor) -> Tensor:
        """Return `outputs`, with what adapters add to them. Raises OtherTokens."""
        now = self._current.tokens
        if now is None:
            return outputs
        outputs = outputs.contiguous()
        rows, flat = outputs.view(-1, self.out_features), inputs.flatten(0, -2)
        if len(flat) != now.num_tokens:
            message = f"{len(flat)} tokens of {now.num_tokens} come to an adapted linear"
            raise OtherTokens(message)
        for update in self.updates:
            mine = update.weights
            low_rank_update(
                rows[:, update.columns],
                flat,
                mine.down,
                mine.up,
                mine.starts,
                mine.most_ranks,
                now.tokens,
                now.tiles,
            )
        return outputs
