"""Shapes of models that take images: the decoder's, and the weights of the tower beside it."""

import pytest
import torch
from transformers import AutoModelForImageTextToText

from muxcluster.placement.shapes.shape import ModelShape, ShapeError
from tests.engine.vision.models import VISION_CONFIGS, vision_config

# As the 7B is published: the language model's keys are the file's own.
FLAT = {
    "model_type": "qwen2_5_vl",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 128000,
    "max_window_layers": 28,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "vision_config": {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
}


@pytest.mark.parametrize("family", VISION_CONFIGS)
def test_parameters_are_those_of_the_module(family: str) -> None:
    config = vision_config(family)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    matrices = sum(each.numel() for each in model.parameters() if each.ndim > 1)
    assert ModelShape.from_hf_config(config.to_dict()).num_params == matrices


def test_a_flat_file() -> None:
    shape = ModelShape.from_hf_config(FLAT)
    assert shape.num_params / 1e9 == pytest.approx(8.29, rel=2e-3)  # as its files have
    assert (shape.num_kv_heads, shape.head_dim, shape.window) == (4, 128, 0)
    text = ModelShape.from_hf_config({**FLAT, "model_type": "qwen2", "vision_config": None})
    assert shape.num_params - text.num_params == shape.vision_params > 6e8
    assert shape.active_params == text.active_params


@pytest.mark.parametrize("vision", [None, 5, {"hidden_size": "x"}, {"depth": 0}])
def test_a_tower_that_cannot_be_told(vision: object) -> None:
    with pytest.raises(ShapeError):
        ModelShape.from_hf_config({**FLAT, "vision_config": vision})
