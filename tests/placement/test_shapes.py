"""Shapes against published parameter counts, and config.json in its spellings."""

import json
from pathlib import Path

import pytest

from placement.known_shapes import SHAPES
from placement.shapes import ModelShape, ShapeError

BILLIONS = {
    "llama-2-7b": 6.738,
    "llama-2-13b": 13.016,
    "llama-2-70b": 68.977,
    "llama-3-8b": 8.030,
    "llama-3-70b": 70.554,
    "mistral-7b": 7.242,
    "qwen2.5-7b": 7.616,
    "mixtral-8x7b": 46.703,
    "opt-13b": 12.853,
    "opt-30b": 29.975,
}
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


@pytest.mark.parametrize("name", BILLIONS)
def test_parameters_as_published(name) -> None:
    assert SHAPES[name].num_params / 1e9 == pytest.approx(BILLIONS[name], rel=1e-3)


def test_known_shapes_agree_with_the_collected_architectures(data_dir) -> None:
    rows = json.loads((data_dir / "model_configs" / "models.json").read_text())
    by_name = {row["name"].lower().removesuffix("-hf"): row for row in rows}
    both = [(name, by_name[name]) for name in SHAPES if name in by_name]
    assert len(both) >= 10
    for name, row in both:
        shape = SHAPES[name]
        assert shape.kv_bytes_per_token(2) == row["kv_bytes_per_token_bf16"], name
        assert shape.num_params / 1e9 == pytest.approx(row["params_b_matrices_only"], rel=2e-3)
        assert shape.max_position == row["max_position"], name
        active = row.get("active_params_b_matrices_only")
        if active is not None:
            assert shape.active_params < shape.num_params


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
    moe = {
        **LLAMA,
        "model_type": "qwen3_moe",
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "head_dim": 128,
    }
    shape = ModelShape.from_hf_config(moe)
    assert (shape.num_experts, shape.experts_per_token, shape.intermediate_size) == (128, 8, 768)
    falcon = {**LLAMA, "model_type": "falcon", "multi_query": True}
    assert ModelShape.from_hf_config(falcon).num_kv_heads == 1


def test_expert_weights_read_grow_with_the_batch() -> None:
    mixtral = SHAPES["mixtral-8x7b"]
    touched = [mixtral.touched_params(tokens) for tokens in (1, 4, 16, 1000)]
    assert touched == sorted(touched)
    assert touched[0] == pytest.approx(mixtral.active_params, rel=1e-6)
    everything = mixtral.num_params - mixtral.embedding_params
    assert touched[-1] == pytest.approx(everything, rel=1e-6)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"num_key_value_heads": 5}, "num_key_value_heads"),
    ],
)
def test_a_bad_config_names_the_key(change, key) -> None:
    with pytest.raises(ShapeError, match=key):
        ModelShape.from_hf_config({**LLAMA, **change})


def test_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ShapeError, match="JSON"):
        ModelShape.from_hf_config(tmp_path)
