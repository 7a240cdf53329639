"""Blocks of sequences: as many as hold them, whatever they are of."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.placement.columns import columns
from muxcluster.placement.shapes.known import SHAPES
from muxcluster.placement.shapes.shape import ModelShape

BLOCK = 8192
MAMBA = ModelShape.from_hf_config(
    {
        "model_type": "mamba",
        "hidden_size": 768,
        "num_hidden_layers": 24,
        "vocab_size": 50280,
        "state_size": 16,
        "conv_kernel": 4,
    }
)
HYBRID = ModelShape.from_hf_config(
    {
        "model_type": "bamba",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128000,
        "attn_layer_indices": [9, 18, 27],
        "mamba_d_state": 128,
        "mamba_d_conv": 4,
        "mamba_n_heads": 128,
        "mamba_d_head": 64,
        "mamba_n_groups": 1,
    }
)
DENSE_HYBRID = replace(HYBRID, pages_states=False)
INT8, FP8 = (replace(SHAPES["opt-13b"], kv_dtype=each) for each in ("int8", "fp8_e4m3"))


def test_attention_alone_is_divided_by_layer_and_head() -> None:
    found = columns(SHAPES["llama-3-8b"], 2, BLOCK, 300)
    assert (found.num_layers, found.num_heads, found.head_dim, found.tokens) == (32, 8, 128, 16)
    assert found.num_blocks(17) == 2 * 32 * 8


def test_states_alone_take_the_same_at_any_length_of_a_column() -> None:
    found = columns(MAMBA, 2, BLOCK, 400)
    assert found.num_blocks(1) == found.num_blocks(found.tokens)
    assert found.num_blocks(1) == 24 * 1536 * 20 * 4 // BLOCK + 1
    assert found.tokens >= 2048


@pytest.mark.parametrize("num_tokens", [50, 400, 2000])
def test_a_hybrid_wastes_little_at_its_mean_length(num_tokens: int) -> None:
    """A column of as many tokens as keys and values like would pay for the states every time."""
    found = columns(DENSE_HYBRID, 2, BLOCK, num_tokens)
    taken = found.num_blocks(num_tokens) * BLOCK
    assert taken < 1.6 * HYBRID.sequence_bytes(num_tokens, 2)


def test_states_beside_paged_attention_have_columns_of_their_own() -> None:
    found = columns(HYBRID, 2, BLOCK, 300)
    assert HYBRID.pages_states
    assert (found.num_layers, found.num_heads, found.head_dim, found.tokens) == (3, 8, 128, 16)
    taken = found.state_columns * 3 * 8 * BLOCK
    # At most a half of a block is left out behind each layer, and a column behind the last.
    states = 4 * HYBRID.state_size
    assert states < taken < states + 29 * BLOCK // 2 + 3 * 8 * BLOCK
    assert found.num_blocks(17) == (found.state_columns + 2) * 24 == found.num_held(17)
    assert found.num_fitting(found.num_blocks(17)) == 32
    assert found.num_fitting(found.num_blocks(1) - 1) == 0


@given(
    shape=st.sampled_from([MAMBA, HYBRID, DENSE_HYBRID, SHAPES["opt-13b"], INT8, FP8]),
    itemsize=st.sampled_from([2, 4]),
    block_bytes=st.sampled_from([4096, BLOCK, 32768]),
    mean=st.integers(0, 5000),
    num_tokens=st.integers(1, 9000),
)
def test_blocks_hold_the_sequence(shape, itemsize, block_bytes, mean, num_tokens) -> None:
    found = columns(shape, itemsize, block_bytes, mean)
    if found.tokens:
        held = found.num_blocks(num_tokens) * block_bytes
        assert held >= shape.sequence_bytes(num_tokens, itemsize)
    else:
        assert block_bytes // (2 * shape.kv_format(itemsize).slot_bytes(found.head_dim)) < 8
