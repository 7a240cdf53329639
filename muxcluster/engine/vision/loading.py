"""Models that take images, when they are loaded: what they cannot do yet, and their forward."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from muxcluster.core.errors import LoadError
from muxcluster.core.inputs.images.rules import read_image_rules
from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.forward.paged_forward import Forward
from muxcluster.engine.vision.forward import VisionForward
from muxcluster.placement.shapes.families import takes_images

_GRID = (2, 3)  # height and width of the first image, in tokens


def has_images(config: Any) -> bool:
    """Return whether the model of transformers' `config` takes images."""
    return takes_images({"model_type": getattr(config, "model_type", "")})


def check_served(spec: ModelSpec, *, is_divided: bool, is_quantised: bool) -> None:
    """Raise LoadError, naming config.json, for what a model that takes images cannot do yet."""
    asked = {
        "it is not divided over several ranks": is_divided,
        "its weights cannot be quantised": is_quantised,
        "it has no adapters": bool(spec.adapters or spec.adapter_places),
        "it gives no embeddings": spec.embedding_size > 0,
    }
    for message, is_asked in asked.items():
        if is_asked:
            raise LoadError(Path(spec.path, "config.json"), f"a model that takes images: {message}")


def plain_forward(model: nn.Module, spec: ModelSpec, *, is_checked: bool = False) -> Forward:
    """Return the forward of a model on transformers' own layers, with its tower if it has one.

    is_checked: the same files were loaded before, so the tower is not run. Raises LoadError if a
    file about images cannot be followed, or as `check_tower`.
    """
    whole: Any = model
    if not has_images(whole.config):
        return Forward(model)
    forward = VisionForward(model, read_image_rules(Path(spec.path)))
    if not is_checked:
        check_tower(forward, spec)
    return forward


@torch.inference_mode()
def check_tower(forward: VisionForward, spec: ModelSpec) -> None:
    """Raise LoadError unless the tower makes finite embeddings of the model's width.

    The error names config.json, or the folder of broken weights.
    """
    side, file = forward.rules.token_pixels, Path(spec.path, "config.json")
    height, width = (side * each for each in _GRID)
    pixels = np.arange(height * width * 3, dtype=np.int64).reshape(height, width, 3) % 251
    try:
        embedded = forward.image(pixels.astype(np.uint8))
    except Exception as error:  # foreign code, with sizes of two files that may not fit together
        message = f"its tower does not take images as its processor's file says: {error}"
        raise LoadError(file, message) from error
    expected = (_GRID[0] * _GRID[1], forward.hidden_size)
    if tuple(embedded.shape) != expected:
        message = f"its tower makes embeddings {tuple(embedded.shape)} of an image, not {expected}"
        raise LoadError(file, message)
    if not embedded.isfinite().all():
        raise LoadError(Path(spec.path), "the weights of its vision tower are broken")
