"""Weights of the part of a model that reads images, from its config.json."""

from collections.abc import Mapping
from typing import Any

from muxcluster.placement.shapes.config_values import ShapeError, integer
from muxcluster.placement.shapes.families import takes_images


def vision_params(config: Mapping[str, Any]) -> int:
    """Return the weights of a vision tower of Qwen-VL's kind (biases and norms left out).

    config: the whole config.json. 0 for a model that takes no images that are served. Raises
    ShapeError naming a key.
    """
    if not takes_images(config):
        return 0
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        raise ShapeError(f"vision_config is {vision!r:.80}, expected an object")

    def size(key: str) -> int:
        if key not in vision:
            raise ShapeError(f"vision_config.{key} is missing")
        return integer(vision, key, 1)

    if config.get("model_type") == "qwen2_vl":
        hidden, output = size("embed_dim"), size("hidden_size")
        of_mlp = 2 * hidden * size("mlp_ratio") * hidden
    else:
        hidden, output = size("hidden_size"), size("out_hidden_size")
        of_mlp = 3 * hidden * size("intermediate_size")
    patch = 3 * size("temporal_patch_size") * size("patch_size") ** 2
    merged = hidden * size("spatial_merge_size") ** 2
    of_layers = size("depth") * (4 * hidden * hidden + of_mlp)
    return patch * hidden + of_layers + merged * merged + merged * output
