"""Turns pixels into embeddings by a model's own vision tower (transformers' Qwen-VL)."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.core.inputs.images.rules import ImageRules

_ATTENTION = "sdpa"  # of the tower: its keys and values are in no pool


class VisionTower:
    """The tower of one model, and how its images are made into numbers."""

    def __init__(self, model: Any, rules: ImageRules) -> None:
        """model: transformers' own, whose tower is `model.model.visual`."""
        self._tower = model.model.visual
        self._tower.config._attn_implementation = _ATTENTION
        self._rules = rules

    def embed(self, pixels: NDArray[np.uint8]) -> Tensor:
        """Return the embeddings of an image's tokens, [tokens, hidden_size].

        pixels: uint8 [height, width, 3], both sides a multiple of `rules.token_pixels`.
        """
        rules = self._rules
        weight = next(self._tower.parameters())
        height, width = (side // rules.patch_size for side in pixels.shape[:2])
        grid = torch.tensor([[1, height, width]], device=weight.device)
        patches = patches_of(pixels, rules).to(weight.device, weight.dtype)
        embedded: Tensor = self._tower(patches, grid_thw=grid).pooler_output
        return embedded


def patches_of(pixels: NDArray[np.uint8], rules: ImageRules) -> Tensor:
    """Return what the tower takes, fp32 [patches, 3 * frames * patch_size * patch_size].

    As transformers' Qwen2VLImageProcessor: patches of a token are one after the other.
    """
    # arrays of a decoded message may be read-only, which torch warns of
    scaled = torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() * rules.scale
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (rules.mean, rules.std))
    normal = (scaled - mean) / std
    side, merge = rules.patch_size, rules.merge_size
    height, width = (size // (side * merge) for size in normal.shape[1:])
    tiles = normal.view(3, height, merge, side, width, merge, side).permute(1, 4, 2, 5, 0, 3, 6)
    frames = tiles.unsqueeze(5).expand(*tiles.shape[:5], rules.temporal_patch_size, side, side)
    return frames.reshape(height * width * merge * merge, -1)
