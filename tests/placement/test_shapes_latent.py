"""Latent attention in plans: bytes of a token, weights, FLOPs, and what is refused."""

import pytest

from muxcluster.config.facts import ModelFacts, with_kv_dtype
from muxcluster.core.kvshape import KvShape, block_bytes
from muxcluster.placement.columns import columns
from muxcluster.placement.cost.resources import resource_model
from muxcluster.placement.hardware import GPUS
from muxcluster.placement.shapes.division import kv_copies, part_of, refusal
from muxcluster.placement.shapes.latent import LatentAttention
from muxcluster.placement.shapes.shape import ModelShape, ShapeError

# As their repositories have it, but for keys that nobody here reads.
V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "max_position_embeddings": 163840,
    "num_nextn_predict_layers": 1,
    "vocab_size": 129280,
    "tie_word_embeddings": False,
}
V2_LITE = {
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "n_shared_experts": 2,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "max_position_embeddings": 163840,
    "vocab_size": 102400,
}


@pytest.mark.parametrize(
    ("config", "billions", "active"), [(V3, 671.0, 36.7), (V2_LITE, 15.7, 2.4)]
)
def test_parameters_as_published(config, billions: float, active: float) -> None:
    """Active ones without the input embedding."""
    shape = ModelShape.from_hf_config(config)
    assert shape.num_params / 1e9 == pytest.approx(billions, rel=2e-3)
    assert shape.active_params / 1e9 == pytest.approx(active, rel=0.04)


@pytest.mark.parametrize("config", [V3, V2_LITE])
def test_a_token_keeps_576_elements_a_layer(config) -> None:
    shape = ModelShape.from_hf_config(config)
    assert shape.kv_bytes_per_token(2) == config["num_hidden_layers"] * 576 * 2
    found = columns(shape, 2, block_bytes(16, 2), 1000.0)
    kept = KvShape(found.num_layers, found.num_heads, found.head_dim, 2)
    assert kept.bytes_per_token == shape.kv_bytes_per_token(2)
    # nothing of a block is empty
    assert 2 * found.tokens * found.head_dim * 2 == block_bytes(16, 2)


@pytest.mark.parametrize("rank", [64, 96, 256, 384, 448, 512, 1024])
@pytest.mark.parametrize("rope", [16, 32, 64])
def test_any_width_fills_its_heads(rank: int, rope: int) -> None:
    latent = LatentAttention(rank, rope, 128, 128)
    num_heads, head_dim = latent.stored_heads
    assert 2 * num_heads * head_dim == rank + rope
    assert 8 <= head_dim <= 128
    assert head_dim & (head_dim - 1) == 0


def test_weights_and_flops_are_those_of_the_matrices() -> None:
    latent = LatentAttention(kv_rank=512, rope_dim=64, nope_dim=128, value_dim=128, query_rank=1536)
    matrices = [
        (7168, 1536),
        (1536, 128 * 192),
        (7168, 576),
        (512, 128 * 256),
        (128 * 128, 7168),
    ]
    assert latent.num_params(7168, 128) == sum(rows * columns for rows, columns in matrices)
    # a product with 576 elements and a sum of 512 for each head
    assert latent.flops(128) == 2 * 128 * (576 + 512)
    shape = ModelShape.from_hf_config(V3)
    assert shape.flops_per_token(1000) - shape.flops_per_token(0) == 61 * 1000 * latent.flops(128)
    costs = resource_model(shape, GPUS["H100"])
    assert costs.kv_bytes == 61 * 576 * 2


def test_every_gpu_keeps_all_latents() -> None:
    shape = ModelShape.from_hf_config(V2_LITE)
    assert refusal(shape, 2) == ""
    assert refusal(shape, 3) == "16 heads cannot be split over 3 GPUs"
    part = part_of(shape, 4)
    assert kv_copies(shape, 4) == 4.0
    assert part.num_heads == 4
    assert part.kv_bytes_per_token(2) == shape.kv_bytes_per_token(2)
    whole, quarter = (each.latent.num_params(2048, each.num_heads) for each in (shape, part))
    assert whole - 4 * quarter == -3 * 2048 * 576


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "kimi_linear"}, "multi-head latent attention of other model types"),
        ({"qk_rope_head_dim": None}, "qk_rope_head_dim is missing"),
        ({"v_head_dim": "128"}, "v_head_dim is '128'"),
        ({"kv_lora_rank": 500}, "kv_lora_rank + qk_rope_head_dim is 564"),
    ],
)
def test_a_bad_config_names_the_key(change, message: str) -> None:
    with pytest.raises(ShapeError) as error:
        ModelShape.from_hf_config({**V3, **change})
    assert message in str(error.value)


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8_e4m3"])
def test_latents_in_8_bits_are_refused(kv_dtype) -> None:
    facts = ModelFacts(ModelShape.from_hf_config(V2_LITE), (), "bfloat16", 4096)
    with pytest.raises(ShapeError, match="latents in the model's dtype"):
        with_kv_dtype(facts, kv_dtype)
