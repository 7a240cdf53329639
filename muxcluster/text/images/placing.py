"""Puts the tokens of images into a prompt."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.errors import InvalidValue
from muxcluster.core.inputs.images.prompt_image import PromptImage
from muxcluster.text.images.decoding import Picture


def placed(
    tokens: NDArray[np.int32], pictures: Sequence[Picture], token_id: int
) -> tuple[NDArray[np.int32], tuple[PromptImage, ...]]:
    """Return a prompt with as many tokens for each image as it has, and the images at their places.

    tokens: int32 [n], with `token_id` once for an image. Raises InvalidValue where the messages'
    own text has that token, too, or the chat template leaves out an image.
    """
    places = np.flatnonzero(tokens == token_id)
    if len(places) != len(pictures):
        message = (
            f"the prompt has {len(places)} places for {len(pictures)} images: no text may hold the "
            "model's own mark of an image, and its chat template must take images"
        )
        raise InvalidValue(message, "messages")
    counts = np.ones(len(tokens), dtype=np.int64)
    counts[places] = [picture.num_tokens for picture in pictures]
    starts = (np.cumsum(counts) - counts)[places].tolist()
    images = tuple(
        PromptImage(start, picture.grid, picture.digest, picture.pixels)
        for start, picture in zip(starts, pictures, strict=True)
    )
    return np.repeat(tokens, counts), images
