"""Positions on three axes and patches are those of transformers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForImageTextToText

from muxcluster.core.inputs.images.prompt_image import PromptImage
from muxcluster.core.inputs.images.rules import read_image_rules
from muxcluster.engine.vision.positions import PromptPositions
from muxcluster.engine.vision.tower import patches_of
from tests.amounts import examples
from tests.engine.vision.models import (
    IMAGE_ID,
    VisionOracle,
    build_vision_model,
    noise_image,
    picture_of,
)

NO_PIXELS = np.empty((0, 0, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_vision_model(tmp_path_factory.mktemp("models") / "vl")


@pytest.fixture(scope="module")
def library(directory: Path) -> object:
    return AutoModelForImageTextToText.from_pretrained(directory).model


@given(
    parts=st.lists(
        st.one_of(st.integers(1, 9), st.tuples(st.integers(1, 6), st.integers(1, 6))),
        min_size=1,
        max_size=7,
    ),
    num_after=st.integers(1, 5),
    cut=st.integers(0, 60),
)
@settings(max_examples=examples(40, 400), deadline=None)
def test_positions_are_the_librarys(
    library, parts: list[int | tuple[int, int]], num_after: int, cut: int
) -> None:
    """Texts (their lengths) and images (their grids), and text behind the last."""
    tokens: list[int] = []
    images: list[PromptImage] = []
    for part in [*parts, num_after]:
        if isinstance(part, int):
            tokens += [7] * part
            continue
        tokens.append(5)  # images are never side by side: each has its marks
        images.append(PromptImage(len(tokens), part, b"", NO_PIXELS))
        tokens += [IMAGE_ID] * images[-1].num_tokens
    ids = torch.tensor([tokens])
    grids = torch.tensor([[1, 2 * height, 2 * width] for height, width in (i.grid for i in images)])
    if images:
        expected, deltas = library.get_rope_index(
            ids, mm_token_type_ids=(ids == IMAGE_ID).int(), image_grid_thw=grids
        )
        wanted, delta = expected[:, 0].numpy(), int(deltas[0])
    else:
        wanted, delta = np.tile(np.arange(len(tokens)), (3, 1)), 0
    found = PromptPositions.of(images)
    middle = min(cut, len(tokens))
    pieces = (found.between(0, middle), found.between(middle, len(tokens)))
    np.testing.assert_array_equal(np.concatenate(pieces, axis=1), wanted)
    behind = found.between(len(tokens) + 3, len(tokens) + 5)
    np.testing.assert_array_equal(behind, [[len(tokens) + 3 + delta, len(tokens) + 4 + delta]] * 3)


@pytest.mark.parametrize("size", [(16, 16), (30, 75), (200, 90), (9, 9)])
def test_patches_are_the_processors(directory: Path, size: tuple[int, int]) -> None:
    image = noise_image(*size)
    picture = picture_of(image, directory)
    _, inputs = VisionOracle(directory).expanded([IMAGE_ID], [image])
    grid = inputs["image_grid_thw"][0].tolist()
    assert grid == [1, 2 * picture.grid[0], 2 * picture.grid[1]]
    patches = patches_of(picture.pixels, read_image_rules(directory))
    torch.testing.assert_close(patches, inputs["pixel_values"], rtol=0, atol=1e-5)
