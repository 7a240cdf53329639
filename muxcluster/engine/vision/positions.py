"""Positions of prompts with images on three axes: time, height and width (M-RoPE, Qwen2-VL §2.1).

A text's tokens have the same position on all three. An image's have the place of its first token as
their time, and from there on count its grid's rows and columns; what follows begins behind the
longer of these. So a sequence's last position is less than its length.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.inputs.images.prompt_image import PromptImage

NUM_AXES = 3


@dataclass(frozen=True, slots=True, eq=False)
class PromptPositions:
    """The positions of one sequence whose prompt has images."""

    known: NDArray[np.int64]  # [NUM_AXES, tokens], of all tokens up to the last image's last
    offset: int  # of the positions behind these: the token's place in the sequence plus this

    @classmethod
    def of(cls, images: Sequence[PromptImage]) -> "PromptPositions":
        """Return the positions of a prompt with `images`, in order, none of them in another."""
        parts: list[NDArray[np.int64]] = []
        place = position = 0  # of the next token
        for image in images:
            num_before = image.start - place
            parts.append(_text(position, num_before))
            position += num_before
            height, width = image.grid
            rows, columns = np.divmod(np.arange(image.num_tokens, dtype=np.int64), width)
            parts.append(position + np.stack((np.zeros_like(rows), rows, columns)))
            position += max(height, width)
            place = image.end
        known = np.concatenate(parts, axis=1) if parts else _text(0, 0)
        return cls(known, position - place)

    def between(self, start: int, end: int) -> NDArray[np.int64]:
        """Return the positions of the tokens from `start` to `end`, [NUM_AXES, end - start]."""
        last = self.known.shape[1]
        begin = max(start, last)
        behind = _text(begin + self.offset, max(0, end - begin))
        return np.concatenate((self.known[:, start : min(end, last)], behind), axis=1)


def _text(first: int, count: int) -> NDArray[np.int64]:
    """Return `count` positions from `first` on, the same on all axes."""
    return np.tile(np.arange(first, first + count, dtype=np.int64), (NUM_AXES, 1))
