"""Forwards of language models that take images."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from muxcluster.core.inputs.images.rules import ImageRules
from muxcluster.engine.forward.attention import LayerAttention
from muxcluster.engine.forward.paged_forward import Forward
from muxcluster.engine.vision.tower import VisionTower


class VisionForward(Forward):
    """`Forward` of a model with a tower for images; its own `logits` are those of texts."""

    def __init__(self, model: nn.Module, rules: ImageRules) -> None:
        super().__init__(model)
        whole: Any = model
        self._embed = whole.model.language_model.embed_tokens
        self._tower = VisionTower(model, rules)
        self.rules = rules

    @property
    def hidden_size(self) -> int:
        size: int = self._embed.embedding_dim
        return size

    def embeddings(self, tokens: Tensor) -> Tensor:
        """Return new embeddings [tokens, hidden_size] of int64 [tokens]."""
        embedded: Tensor = self._embed(tokens)
        return embedded

    def image(self, pixels: NDArray[np.uint8]) -> Tensor:
        """Return the embeddings of an image: see `VisionTower.embed`."""
        return self._tower.embed(pixels)


@dataclass(frozen=True, slots=True, eq=False)
class ImagePiece:
    """Consecutive tokens of an image in a batch."""

    first: int  # place of the first of them in the batch
    embeddings: Tensor  # [tokens, hidden_size]


@dataclass(frozen=True, slots=True, eq=False)
class ForwardWithImages:
    """The forward of one batch, some of whose rows have images, a `TokenForward`."""

    forward: VisionForward
    positions: Tensor  # int64 [3, tokens], of the whole batch
    pieces: Sequence[ImagePiece]

    @property
    def windows(self) -> tuple[int | None, ...]:
        return self.forward.windows

    def logits(
        self,
        tokens: Tensor,
        positions: Tensor,
        attention: LayerAttention,
        wanted: Tensor | None,
        out: Tensor | None = None,
    ) -> Tensor:
        """As `TokenForward.logits`; the positions are those of the batch, not these."""
        embedded = self.forward.embeddings(tokens)
        for piece in self.pieces:
            embedded[piece.first : piece.first + len(piece.embeddings)] = piece.embeddings
        inputs = {"inputs_embeds": embedded.unsqueeze(0)}
        return self.forward.computed(inputs, self.positions.unsqueeze(1), attention, wanted, out)
