"""Which heads and rows each GPU of a mesh has, and what the planner counts of them."""

from dataclasses import replace

import pytest

from muxcluster.placement.execution import unshared
from muxcluster.placement.hardware import gpu_named
from muxcluster.placement.memory import (
    DoesNotFit,
    activation_bytes,
    block_bytes,
    kv_blocks,
    sequence_blocks,
    table_bytes,
    usable_bytes,
    weight_bytes,
)
from muxcluster.placement.problem import Demand, Limits
from muxcluster.placement.shapes.division import (
    expert_bounds,
    feature_bounds,
    kv_copies,
    num_rank_kv_heads,
    part_of,
    rank_kv_heads,
    refusal,
)
from muxcluster.placement.shapes.families import undivided, undivided_shape
from muxcluster.placement.shapes.known import SHAPES
from muxcluster.placement.shapes.shape import ModelShape

HEADS = [
    (heads, kv_heads, size)
    for heads in range(1, 49)
    for kv_heads in range(1, heads + 1)
    for size in (1, 2, 4, 8)
    if heads % kv_heads == 0 and heads % size == 0
]


def demand_of(shape: ModelShape, **fields: object) -> Demand:
    return replace(Demand("m", shape, 1.0, 100.0, 100.0, 1024, 16), **fields)


def test_every_query_head_finds_its_keys_on_its_gpu() -> None:
    """The kernels give equally many consecutive query heads to each KV head that they see."""
    for heads, kv_heads, size in HEADS:
        mine = heads // size
        for rank in range(size):
            here = rank_kv_heads(heads, kv_heads, rank, size)
            assert len(here) == num_rank_kv_heads(heads, kv_heads, size)
            assert mine % len(here) == 0
            for place in range(mine):
                wanted = (rank * mine + place) // (heads // kv_heads)
                assert here[place * len(here) // mine] == wanted, (heads, kv_heads, size, rank)


def test_no_kv_head_is_held_twice_without_need() -> None:
    for heads, kv_heads, size in HEADS:
        here = num_rank_kv_heads(heads, kv_heads, size)
        if kv_heads % size == 0:
            assert here == kv_heads // size
        elif size % kv_heads == 0:
            assert here == 1
        else:
            assert here <= heads // size


@pytest.mark.parametrize("bounds", [feature_bounds, expert_bounds])
def test_parts_of_an_mlp_cover_it_once(bounds) -> None:
    for length in range(8, 400):
        for size in (1, 2, 4, 8):
            parts = [bounds(length, rank, size) for rank in range(size)]
            covered = [row for first, end in parts for row in range(first, end)]
            assert covered == list(range(length)), (length, size)
            assert all(end > first for first, end in parts) or length < 8 * size


def test_parts_of_experts_start_at_whole_16_bytes() -> None:
    assert [expert_bounds(200, rank, 4) for rank in range(4)] == [
        (0, 56), (56, 112), (112, 168), (168, 200),
    ]  # fmt: skip
    assert [feature_bounds(200, rank, 4) for rank in range(4)] == [
        (0, 50), (50, 100), (100, 150), (150, 200),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "size", "copies"),
    [
        ("llama-3-8b", 8, 1.0),  # 8 KV heads
        ("qwen2-7b", 2, 1.0),  # 4 KV heads for 28
        ("qwen3-30b-a3b", 8, 2.0),  # 4 KV heads for 32, each on two GPUs
        ("phi-4", 4, 2.0),  # 10 KV heads for 40: 4 query heads a KV head, 10 a GPU, so 5 on each
    ],
)
def test_what_a_mesh_holds_of_kv(name: str, size: int, copies: float) -> None:
    shape = SHAPES[name]
    assert kv_copies(shape, size) == copies
    demand = demand_of(shape)
    per_block = block_bytes([demand], Limits())
    once, divided = (sequence_blocks(demand, 1000, per_block, parts) for parts in (1, size))
    assert divided == copies * once


def test_what_every_gpu_has_whole_is_counted_on_each() -> None:
    opt, mixtral = SHAPES["opt-13b"], SHAPES["mixtral-8x7b"]
    positions = opt.max_position * opt.hidden_size
    assert 4 * part_of(opt, 4).num_params == opt.num_params + 3 * positions
    routers = mixtral.num_layers * mixtral.hidden_size * mixtral.num_experts
    assert 4 * part_of(mixtral, 4).num_params == mixtral.num_params + 3 * routers
    assert weight_bytes(demand_of(mixtral), 4) == 2 * (mixtral.num_params + 3 * routers)
    tied = replace(SHAPES["llama-3-8b"], vocab_size=128257, tied_embeddings=True)
    assert part_of(tied, 4).vocab_size == 32065


def test_buffers_of_every_gpu_are_counted() -> None:
    demand, limits = demand_of(SHAPES["llama-3-8b"]), Limits()
    shape = demand.shape
    inner = 2 * limits.token_budget * 3 * shape.intermediate_size
    alone, wide = (activation_bytes(demand, limits, size) for size in (1, 4))
    assert wide - inner == 4 * (alone - inner)
    per_block = block_bytes([demand], limits)
    history = 4 * demand.max_seqs * (demand.max_model_len + 1)
    tables = [table_bytes(demand, per_block, size) - size * history for size in (1, 4)]
    assert tables[0] == tables[1]


def test_the_pool_is_what_the_counted_bytes_leave() -> None:
    gpu, size, limits = gpu_named("A100-80GB"), 8, Limits()
    demand = demand_of(SHAPES["qwen3-30b-a3b"])
    way, per_block = unshared("mixed"), block_bytes([demand], limits)
    need = weight_bytes(demand, size) + table_bytes(demand, per_block, size)
    need += activation_bytes(demand, limits, size)
    blocks = kv_blocks(gpu, size, [demand], limits, way)
    left = usable_bytes(gpu, size, way) - need - blocks * per_block
    recorded = 8 * (9 * demand.max_seqs * demand.shape.vocab_size + 32 * 2**20)
    assert 0 <= left - recorded < size * per_block


@pytest.mark.parametrize(
    ("shape", "size", "says"),
    [
        (SHAPES["llama-30b"], 8, "52 heads cannot be split over 8 GPUs"),
        (replace(SHAPES["llama-7b"], intermediate_size=5), 4, "5 features of an MLP cannot be"),
        (replace(SHAPES["llama-7b"], state_size=8), 2, "a model with states cannot be split over"),
        (
            replace(SHAPES["gpt-oss-20b"], intermediate_size=96),
            4,
            "96 inputs in groups of 32 cannot be split over 4 GPUs",
        ),
    ],
)
def test_sizes_that_cannot_be_divided(shape: ModelShape, size: int, says: str) -> None:
    assert refusal(shape, size).startswith(says)
    assert not refusal(shape, 1)
    assert part_of(shape, 1) is shape
    with pytest.raises(ValueError, match=says):
        part_of(shape, size)


def test_parts_of_quantised_experts_are_whole_blocks() -> None:
    shape = SHAPES["gpt-oss-120b"]
    assert [part_of(shape, size).intermediate_size for size in (2, 4, 8)] == [1440, 736, 384]
    assert part_of(replace(shape, weights=None), 4).intermediate_size == 720


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_type": "llama"}, ""),
        ({"model_type": "falcon"}, "models of type 'falcon' run on the dense backend"),
        ({"model_type": "olmo2"}, "models of type 'olmo2' have norms over all heads"),
        ({"model_type": "mine"}, "for models of type 'mine' there is no tested plan"),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, "it is part of"),
    ],
)
def test_families_that_cannot_be_divided(config: dict[str, object], says: str) -> None:
    reason = undivided(config)
    assert reason.startswith(says) and bool(reason) == bool(says)
    demand = demand_of(SHAPES["llama-7b"], undivided=reason)
    gpu, way = gpu_named("A100-80GB"), unshared("mixed")
    assert kv_blocks(gpu, 1, [demand], Limits(), way) > 0
    if reason:
        with pytest.raises(DoesNotFit, match="so it cannot be split over 2 GPUs"):
            kv_blocks(gpu, 2, [demand], Limits(), way)


def test_known_shapes_that_cannot_be_divided() -> None:
    refused = {name for name in SHAPES if undivided_shape(name)}
    assert refused == {"falcon-7b", "falcon-40b", "gemma-3-4b", "gemma-3-12b", "gemma-3-27b"}
    assert undivided_shape("tiiuae/falcon-7b-instruct")
