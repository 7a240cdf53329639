"""Images of prompts: their pixels, the tokens that stand for them, and what names their content."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class PromptImage:
    """An image of a prompt, in the size that the model sees.

    Its tokens are one after the other, those of its grid row by row.
    """

    start: int  # position of its first token in the prompt
    grid: tuple[int, int]  # height and width in tokens
    digest: bytes  # 32 bytes, `content_digest` of its pixels
    # uint8 [height, width, 3], RGB; without elements where only positions are needed
    pixels: NDArray[np.uint8]

    @property
    def num_tokens(self) -> int:
        height, width = self.grid
        return height * width

    @property
    def end(self) -> int:
        """Position behind its last token."""
        return self.start + self.num_tokens

    def without_pixels(self) -> "PromptImage":
        """Return what its positions need."""
        return replace(self, pixels=np.empty((0, 0, 3), dtype=np.uint8))


def content_digest(pixels: NDArray[np.uint8]) -> bytes:
    """Return the 32 bytes that name an image: a SHA-256 of its size and its pixels."""
    return hashlib.sha256(f"{pixels.shape}\0".encode() + pixels.tobytes()).digest()


def block_marks(
    images: Sequence[PromptImage], first: int, num_blocks: int, block_tokens: int
) -> Mapping[int, bytes]:
    """Return what is hashed with the tokens of blocks that hold some of an image.

    All images have the same tokens, so these do not tell what their keys and values are. By the
    number of the block, counted from block `first` of the prompt; `num_blocks` are looked at.
    """
    marks: dict[int, bytes] = {}
    for image in images:
        begin = max(first, image.start // block_tokens)
        end = min(first + num_blocks, -(-image.end // block_tokens))
        mark = image.start.to_bytes(8, "little") + image.digest
        for block in range(begin, end):
            marks[block - first] = marks.get(block - first, b"") + mark
    return marks
