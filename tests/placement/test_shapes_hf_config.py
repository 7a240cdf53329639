"""config.json in its spellings, and what is wrong in one."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.placement.shapes.known import SHAPES
from muxcluster.placement.shapes.shape import ModelShape, ShapeError

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}


MOE = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "head_dim": 128,
}


def test_a_config_gives_the_known_shape(tmp_path: Path) -> None:
    assert ModelShape.from_hf_config(LLAMA) == SHAPES["llama-3-8b"]
    (tmp_path / "config.json").write_text(json.dumps({"text_config": LLAMA}))
    assert ModelShape.from_hf_config(tmp_path) == SHAPES["llama-3-8b"]
    assert ModelShape.from_hf_config(tmp_path / "config.json") == SHAPES["llama-3-8b"]


def test_spellings_of_other_families() -> None:
    opt = {
        "model_type": "opt",
        "hidden_size": 5120,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "ffn_dim": 20480,
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
    }
    assert ModelShape.from_hf_config(opt) == SHAPES["opt-13b"]
    gpt2 = {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "vocab_size": 50257,
        "n_positions": 1024,
    }
    assert ModelShape.from_hf_config(gpt2).num_params == pytest.approx(124.4e6, rel=1e-2)
    shape = ModelShape.from_hf_config(MOE)
    assert (shape.num_experts, shape.experts_per_token, shape.intermediate_size) == (128, 8, 768)
    falcon = {**LLAMA, "model_type": "falcon", "multi_query": True}
    assert ModelShape.from_hf_config(falcon).num_kv_heads == 1


def test_what_a_nested_config_leaves_out_is_its_family_s() -> None:
    text = {"model_type": "gemma3_text", "num_hidden_layers": 34}
    text |= {"hidden_size": 2560, "intermediate_size": 10240, "sliding_window": 1024}
    config = {"model_type": "gemma3", "text_config": text}
    assert ModelShape.from_hf_config(config) == SHAPES["gemma-3-4b"]


def test_the_outer_tie_flag_counts_where_the_inner_one_is_absent() -> None:
    text = {key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"}
    outer = {"text_config": text, "tie_word_embeddings": True}
    assert ModelShape.from_hf_config(outer).tied_embeddings
    outer["text_config"] = LLAMA
    assert not ModelShape.from_hf_config(outer).tied_embeddings


def test_falcon_and_its_kv_heads() -> None:
    falcon = {**LLAMA, "model_type": "falcon", "num_attention_heads": 32}
    del falcon["num_key_value_heads"]
    new = {**falcon, "new_decoder_architecture": True, "num_kv_heads": 8}
    assert ModelShape.from_hf_config(new).num_kv_heads == 8
    assert ModelShape.from_hf_config({**falcon, "multi_query": False}).num_kv_heads == 32
    assert ModelShape.from_hf_config(falcon).num_kv_heads == 1


def test_the_older_keys_of_bloom_falcon_and_mpt() -> None:
    old = {"n_embed": 4096, "n_layer": 30, "n_head": 32, "vocab_size": 250880, "seq_length": 4096}
    bloom = ModelShape.from_hf_config({"model_type": "bloom", **old, "hidden_size": 64})
    assert (bloom.hidden_size, bloom.num_layers, bloom.num_heads) == (4096, 30, 32)
    assert (bloom.head_dim, bloom.num_kv_heads, bloom.intermediate_size) == (128, 32, 4 * 4096)
    assert (bloom.max_position, bloom.tied_embeddings) == (4096, True)
    new = {"new_decoder_architecture": True, "n_head_kv": 8}
    falcon = ModelShape.from_hf_config({"model_type": "falcon", **old, **new})
    assert (falcon.num_layers, falcon.num_heads, falcon.num_kv_heads) == (30, 32, 8)
    mpt = {"model_type": "mpt", "d_model": 512, "n_heads": 8, "n_layers": 6, "vocab_size": 1000}
    shape = ModelShape.from_hf_config({**mpt, "max_seq_len": 8192})
    assert (shape.hidden_size, shape.num_layers, shape.head_dim) == (512, 6, 64)
    assert (shape.intermediate_size, shape.gated_mlp, shape.max_position) == (2048, False, 8192)


def test_layers_without_experts_and_shared_experts() -> None:
    changes = {"model_type": "glm4_moe", "first_k_dense_replace": 3, "n_shared_experts": 2}
    shape = ModelShape.from_hf_config({**MOE, **changes})
    assert (shape.num_dense_layers, shape.dense_intermediate_size) == (3, 14336)
    assert shape.shared_intermediate_size == 2 * 768
    plain = ModelShape.from_hf_config(MOE)
    one_sparse = 4096 * 128 + 128 * plain.expert_params
    difference = 3 * (3 * 4096 * 14336 - one_sparse) + 29 * 2 * 3 * 4096 * 768
    assert shape.num_params - plain.num_params == difference


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers is '32', expected a positive integer"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"vocab_size": float("nan")}, "vocab_size is nan"),
        ({"intermediate_size": -4}, "intermediate_size is -4"),
        ({"num_key_value_heads": 5}, "num_key_value_heads is 5, expected a divisor of 32"),
        ({"num_key_value_heads": "8"}, "num_key_value_heads is '8'"),
        ({"num_attention_heads": 48, "num_key_value_heads": 8}, "hidden_size is 4096"),
        ({"head_dim": 1.5}, "head_dim is 1.5"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no', expected true or false"),
        ({"text_config": [1]}, "text_config"),
        ({"num_local_experts": 8}, "num_experts_per_tok is missing"),
        ({"num_local_experts": 8, "num_experts_per_tok": 9}, "more than the 8 experts"),
        ({"num_local_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": 1}, "mlp_only"),
        ({"kv_lora_rank": 512}, "multi-head latent attention"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"mamba_d_conv": 4}, "state-space"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer_types has linear_att"),
        ({"layer_types": 3}, "layer_types is 3"),
    ],
)
def test_a_bad_config_names_the_key(change, message: str) -> None:
    with pytest.raises(ShapeError) as error:
        ModelShape.from_hf_config({**LLAMA, **change})
    assert message in str(error.value)


@given(
    key=st.sampled_from(sorted({*MOE, "first_k_dense_replace", "n_shared_experts", "layer_types"})),
    value=st.one_of(
        st.none(), st.booleans(), st.integers(-3, 200), st.floats(), st.text(), st.lists(st.none())
    ),
)
def test_any_value_gives_a_positive_shape_or_a_sentence(key: str, value) -> None:
    try:
        shape = ModelShape.from_hf_config({**MOE, key: value})
    except ShapeError as error:
        assert str(error)
    else:
        assert shape.num_params > 0 < shape.kv_bytes_per_token(2)
        assert shape.active_params > 0
        assert 0 <= shape.num_dense_layers <= shape.num_layers


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "[]", "\udc80"])
def test_no_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ShapeError, match="JSON"):
        ModelShape.from_hf_config(tmp_path)
