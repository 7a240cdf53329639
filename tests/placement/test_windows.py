"""Sliding windows in plans: which layers have one, and what a running sequence holds and reads."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig

from muxcluster.placement.columns import Columns
from muxcluster.placement.shapes.known import SHAPES
from muxcluster.placement.shapes.shape import ModelShape
from muxcluster.placement.shapes.windows import window_fields

NUM_LAYERS, WINDOW = 13, 64
FAMILIES = (
    *("mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "phi3", "starcoder2"),
    *("gemma2", "gemma3_text", "cohere2", "gpt_oss"),
)


@pytest.mark.parametrize("is_listed", [True, False])
@pytest.mark.parametrize("kind", FAMILIES)
def test_layers_are_those_of_transformers(kind: str, is_listed: bool) -> None:
    """With the types of layers in the file, and as it was written before these were."""
    asked = {"use_sliding_window": True, "max_window_layers": 4} if "qwen" in kind else {}
    config = AutoConfig.for_model(
        kind, num_hidden_layers=NUM_LAYERS, sliding_window=WINDOW, **asked
    )
    types = getattr(config, "layer_types", None) or ["sliding_attention"] * NUM_LAYERS
    layers = tuple(i for i, name in enumerate(types) if name == "sliding_attention")
    assert layers
    raw = {key: value for key, value in config.to_dict().items() if value is not None}
    if not is_listed:
        raw.pop("layer_types", None)
    expected = {"window": WINDOW, "window_layers": layers}
    assert window_fields(raw, kind, NUM_LAYERS) == expected


def test_known_shapes_are_those_of_their_files() -> None:
    config = AutoConfig.for_model("gpt_oss", num_hidden_layers=24, num_local_experts=32)
    raw = {key: value for key, value in config.to_dict().items() if value is not None}
    known = SHAPES["gpt-oss-20b"]
    found = window_fields(raw, "gpt_oss", 24)
    assert found == {"window": known.window, "window_layers": known.window_layers}


def test_families_with_windows_from_a_layer_on_have_them_late_by_default() -> None:
    asked = {"sliding_window": 64, "use_sliding_window": True}
    config = AutoConfig.for_model("qwen2", num_hidden_layers=30, **asked)
    types = config.layer_types
    layers = tuple(i for i, name in enumerate(types) if name == "sliding_attention")
    assert window_fields(asked, "qwen2", 30)["window_layers"] == layers


def test_where_no_layer_has_a_window() -> None:
    assert window_fields({}, "mistral", 4) == {}
    assert window_fields({"sliding_window": 64}, "qwen2", 4) == {}
    assert window_fields({"sliding_window": 64, "use_sliding_window": False}, "mistral", 4) == {}
    assert window_fields({"sliding_window": 64}, "llama", 4) == {}
    types = {"layer_types": ["full_attention"] * 4}
    assert window_fields({"sliding_window": 64, **types}, "mistral", 4) == {}


@given(
    width=st.sampled_from((8, 16, 24)),
    window=st.integers(1, 100),
    num_computed=st.integers(1, 300),
    num_windowed=st.integers(0, 3),
)
def test_blocks_that_a_running_sequence_holds(
    width: int, window: int, num_computed: int, num_windowed: int
) -> None:
    """Counted one by one, when the token after `num_computed` others is computed."""
    columns = Columns(3, 2, 128, width, window, num_windowed)
    seen = range(max(0, num_computed + 1 - window), num_computed + 1)
    windowed = len({position // width for position in seen})
    full = len({position // width for position in range(num_computed + 1)})
    held = 2 * (num_windowed * windowed + (3 - num_windowed) * full)
    assert held <= columns.num_held(num_computed + 1) <= held + 2 * num_windowed
    assert columns.num_held(num_computed + 1) <= columns.num_blocks(num_computed + 1)


def test_what_a_token_reads() -> None:
    plain = replace(SHAPES["gemma-2-9b"], window=0, window_layers=())
    shape = SHAPES["gemma-2-9b"]
    assert len(shape.window_layers) * 2 == shape.num_layers
    assert shape.sequence_bytes(1000, 2) == plain.sequence_bytes(1000, 2)
    assert shape.sequence_bytes(8192, 2) == pytest.approx(0.75 * plain.sequence_bytes(8192, 2))
    attention = plain.flops_per_token(8192) - plain.flops_per_token(0)
    assert shape.flops_per_token(8192) == pytest.approx(plain.flops_per_token(0) + 0.75 * attention)
    every = ModelShape.from_hf_config(
        {
            "model_type": "mistral",
            "num_hidden_layers": 4,
            "hidden_size": 256,
            "num_attention_heads": 4,
            "intermediate_size": 512,
            "vocab_size": 1000,
            "sliding_window": 128,
        }
    )
    assert every.sequence_bytes(5000, 2) == every.sequence_bytes(128, 2)
