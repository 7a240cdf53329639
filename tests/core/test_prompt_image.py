"""Images of prompts, and what they add to the hashes of blocks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.core.hashing import extend_hashes, root_hash
from muxcluster.core.inputs.images.prompt_image import PromptImage, block_marks, content_digest

ROOT = root_hash("m", "")
NO_PIXELS = np.empty((0, 0, 3), dtype=np.uint8)
BLOCK = 8


def image(start: int, grid: tuple[int, int] = (2, 5), digest: bytes = b"a" * 32) -> PromptImage:
    return PromptImage(start, grid, digest, NO_PIXELS)


def hashes(images: list[PromptImage], num_tokens: int = 64) -> list[bytes]:
    tokens = np.full(num_tokens, 9, dtype=np.int32)
    num_blocks = num_tokens // BLOCK
    return list(extend_hashes(ROOT, tokens, BLOCK, block_marks(images, 0, num_blocks, BLOCK)))


def test_blocks_differ_from_the_first_that_holds_some_of_an_image() -> None:
    plain, one, other = hashes([]), hashes([image(13)]), hashes([image(13, digest=b"b" * 32)])
    assert plain[:1] == one[:1] == other[:1]
    assert len({plain[1], one[1], other[1]}) == 3
    assert not set(plain[1:]) & set(one[1:]) | set(one[1:]) & set(other[1:])
    assert hashes([image(13)]) == one


def test_the_place_in_a_block_counts() -> None:
    assert hashes([image(13)])[1] != hashes([image(14)])[1]


def test_an_image_that_ends_with_a_block_is_not_in_the_next() -> None:
    assert dict(block_marks([image(6, (2, 5))], 0, 9, BLOCK)).keys() == {0, 1}
    assert dict(block_marks([image(6, (1, 11))], 0, 9, BLOCK)).keys() == {0, 1, 2}


@given(
    starts=st.lists(st.integers(0, 50), max_size=4, unique=True),
    cut=st.integers(0, 8),
    digests=st.lists(st.binary(min_size=32, max_size=32), min_size=4, max_size=4),
)
def test_hashes_are_the_same_in_pieces(starts: list[int], cut: int, digests: list[bytes]) -> None:
    """As a request's grow with its blocks."""
    images = [image(s, (1, 4), d) for s, d in zip(sorted(starts), digests, strict=False)]
    whole = hashes(images)
    tokens = np.full(64, 9, dtype=np.int32)
    first = list(
        extend_hashes(ROOT, tokens[: cut * BLOCK], BLOCK, block_marks(images, 0, cut, BLOCK))
    )
    parent = first[-1] if first else ROOT
    marks = block_marks(images, cut, 8 - cut, BLOCK)
    assert first + list(extend_hashes(parent, tokens[cut * BLOCK :], BLOCK, marks)) == whole


def test_pixels_of_another_shape_are_another_image() -> None:
    pixels = np.zeros((4, 8, 3), dtype=np.uint8)
    assert content_digest(pixels) != content_digest(pixels.reshape(8, 4, 3))
    assert content_digest(pixels) == content_digest(pixels.copy())
