"""The images of rows: they stay while a job may come again, and no longer."""

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from muxcluster.core.inputs.images.prompt_image import PromptImage
from muxcluster.core.job import Admission, Rows
from muxcluster.core.sampling import SamplingParams
from muxcluster.engine.vision.forward import ForwardWithImages
from muxcluster.engine.vision.rows import RowImages

ROW, SIDE = 2, 28


def embedded(pixels: NDArray[np.uint8]) -> torch.Tensor:
    """Two tokens that say what the pixels are."""
    return torch.full((2, 1), float(pixels[0, 0, 0]))


def image_at(start: int, value: int) -> PromptImage:
    pixels = np.full((SIDE, 2 * SIDE, 3), value, dtype=np.uint8)
    return PromptImage(start, (1, 2), bytes([value]) * 32, pixels)


def pieces_of(images: RowImages, start: int, count: int) -> list[tuple[int, list[float]]]:
    """Where in a job of the row image tokens lie, and what they are."""
    one = np.ones(1, dtype=np.int32)
    rows = Rows(ROW * one, start * one, count * one, np.zeros(1, dtype=np.bool_))
    forward = images.forward_of(rows, torch.arange(start, start + count))
    assert isinstance(forward, ForwardWithImages)
    return [(piece.first, piece.embeddings.flatten().tolist()) for piece in forward.pieces]


def test_pixels_stay_until_a_job_begins_behind_them() -> None:
    """A job that fails comes again, in the same worker and without an admission."""
    tower: Any = SimpleNamespace(image=embedded)
    images, pictures = RowImages(tower), (image_at(1, 5), image_at(4, 7))
    tokens = np.zeros(9, dtype=np.int32)
    images.admit(Admission(ROW, "r", tokens, 9, SamplingParams(), images=pictures))
    first, second = (weakref.ref(picture.pixels) for picture in pictures)
    del pictures
    for _ in range(2):
        assert pieces_of(images, 0, 5) == [(1, [5.0, 5.0]), (4, [7.0])]
    for _ in range(2):
        assert pieces_of(images, 5, 2) == [(0, [7.0])]
    gc.collect()
    assert first() is None
    assert second() is not None
    assert pieces_of(images, 7, 2) == []
    gc.collect()
    assert second() is None
