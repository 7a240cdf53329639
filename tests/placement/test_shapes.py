"""Known shapes against published parameter counts and collected architectures."""

import json

import pytest

from muxcluster.placement.shapes.known import SHAPES, shape_named
from muxcluster.placement.shapes.shape import ShapeError

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


@pytest.mark.parametrize("name", BILLIONS)
def test_parameters_as_published(name) -> None:
    assert SHAPES[name].num_params / 1e9 == pytest.approx(BILLIONS[name], rel=1e-3)


OTHER_CONTEXTS = {"Gemma-3-1b-it": 32768}
"""Where the collected number is that of the family and the model's own config.json says less."""


@pytest.fixture(scope="module")
def rows(data_dir):
    found = json.loads((data_dir / "model_configs" / "models.json").read_text())
    assert len(found) == 64
    return found


def test_every_collected_model_has_its_shape(rows) -> None:
    for row in rows:
        shape = shape_named(row["name"])
        assert shape is shape_named(row["hf_repo"]), row["name"]
        assert f"{shape.num_params / 1e9:.3f}" == f"{row['params_b_matrices_only']:.3f}", row
        assert shape.kv_bytes_per_token(2) == row["kv_bytes_per_token_bf16"], row["name"]
        context = OTHER_CONTEXTS.get(row["name"], row["max_position"])
        assert shape.max_position == context, row["name"]


def test_every_collected_model_has_its_sizes(rows) -> None:
    same = {
        "num_layers": "num_layers",
        "hidden_size": "hidden_size",
        "num_heads": "num_heads",
        "num_kv_heads": "num_kv_heads",
        "head_dim": "head_dim",
        "gated_mlp": "gated_mlp",
        "tie_word_embeddings": "tied_embeddings",
    }
    for row in rows:
        shape = shape_named(row["name"])
        for theirs, ours in same.items():
            assert getattr(shape, ours) == row[theirs], (row["name"], ours)
        experts = (row.get("num_experts", 1), row.get("experts_per_token", 1))
        assert (shape.num_experts, shape.experts_per_token) == experts, row["name"]
        inner = row.get("moe_intermediate_size", row["intermediate_size"])
        assert shape.intermediate_size == inner, row["name"]


def test_active_parameters_of_the_collected_mixtures(rows) -> None:
    mixtures = [row for row in rows if "active_params_b_matrices_only" in row]
    assert len(mixtures) == 4
    for row in mixtures:
        shape = shape_named(row["name"])
        routers = shape.num_layers * shape.hidden_size * shape.num_experts
        theirs = shape.active_params + shape.embedding_params - routers
        expected = row["active_params_b_matrices_only"]
        assert theirs / 1e9 == pytest.approx(expected, abs=5.1e-4), row["name"]


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("Qwen2.5-7B", "qwen2.5-7b"),
        ("QWEN2.5-7B", "qwen2.5-7b"),
        ("mistralai/Mistral-7B-Instruct-v0.2", "mistral-7b"),
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "tiny-llama-1.1b"),
        (" opt-13b ", "opt-13b"),
    ],
)
def test_names_of_repositories(name: str, known: str) -> None:
    assert shape_named(name) is SHAPES[known]


@pytest.mark.parametrize("name", SHAPES)
def test_every_name_finds_itself(name: str) -> None:
    assert shape_named(name) is SHAPES[name]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("llama2-7b", "did you mean llama-2-7b"),
        ("qwen2.5-7", "qwen2.5-7b"),
        ("Qwen/Qwen3-4B-Instruct-2507", "did you mean qwen3-4b"),
        ("zzz", f"nearest of {len(SHAPES)}"),
        ("", "unknown shape ''"),
    ],
)
def test_an_unknown_name_gets_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(ShapeError) as error:
        shape_named(name)
    assert hint in str(error.value)


def test_expert_weights_read_grow_with_the_batch() -> None:
    mixtral = SHAPES["mixtral-8x7b"]
    touched = [mixtral.touched_params(tokens) for tokens in (1, 4, 16, 1000)]
    assert touched == sorted(touched)
    assert touched[0] == pytest.approx(mixtral.active_params, rel=1e-6)
    everything = mixtral.num_params - mixtral.embedding_params
    assert touched[-1] == pytest.approx(everything, rel=1e-6)
