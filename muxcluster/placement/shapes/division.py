"""Division of a model over the GPUs of a mesh: each one's heads, rows of weights, and shape.

Planner and engine both ask here, so that a plan counts what each GPU holds. All GPUs have parts of
the same shape; the last part of rows that do not divide evenly is shorter.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from math import gcd

from muxcluster.placement.shapes.shape import ModelShape
from muxcluster.placement.shapes.weight_format import WeightFormat

_FEATURES = 8  # at least 16 bytes in each dtype


def part_bounds(length: int, rank: int, size: int) -> tuple[int, int]:
    """Return first and end of a rank's part of `length` rows; the last may be short or empty."""
    rows = -(-length // size)
    return min(rank * rows, length), min((rank + 1) * rows, length)


def feature_bounds(length: int, rank: int, size: int) -> tuple[int, int]:
    """Return first and end of a rank's part of the features between two linears: of an MLP, or of
    attention, whose heads are a multiple of the ranks."""
    return (
        part_bounds(length, rank, size) if length % size == 0 else expert_bounds(length, rank, size)
    )


def expert_step(weights: WeightFormat | None) -> int:
    """Return of how many features parts of experts are multiples, where there are enough.

    weights: as of `ModelShape`.
    """
    # Products of all experts at once take rows of whole 16 bytes only (torch's grouped_mm), and
    # quantised ones whole groups of inputs.
    return weights.group if weights is not None and weights.of_experts else _FEATURES


def expert_bounds(length: int, rank: int, size: int, step: int = _FEATURES) -> tuple[int, int]:
    """Return first and end of a rank's part of the features of each expert; step: `expert_step`."""
    step = step if fills_all(-(-length // step), size) else 1
    first, end = part_bounds(-(-length // step), rank, size)
    return first * step, min(end * step, length)


def fills_all(length: int, size: int) -> bool:
    """Return whether every rank has some of `length` rows."""
    first, end = part_bounds(length, size - 1, size)
    return end > first


def num_rank_kv_heads(num_heads: int, num_kv_heads: int, size: int) -> int:
    """Return the KV heads of one rank that has `num_heads` / `size` query heads, a whole number.

    A KV head whose query heads are on several ranks is on each of them. All KV heads of a rank
    serve equally many of its query heads, as our kernels want it, so a rank has one of them twice
    where its query heads are no multiple of those that share a KV head, nor a part of them.
    """
    mine = num_heads // size
    return mine // gcd(num_heads // num_kv_heads, mine)


def rank_kv_heads(num_heads: int, num_kv_heads: int, rank: int, size: int) -> tuple[int, ...]:
    """Return which of the model's KV heads a rank has, in the order of its query heads."""
    here = num_rank_kv_heads(num_heads, num_kv_heads, size)
    mine, group = num_heads // size, num_heads // num_kv_heads
    served = mine // here
    return tuple((rank * mine + place * served) // group for place in range(here))


def kv_copies(shape: ModelShape, size: int) -> float:
    """Return how often a mesh holds the KV of a token, a model that cannot be divided once."""
    if size == 1 or shape.num_heads % size:
        return 1.0
    if shape.latent is not None:
        return float(size)
    here = num_rank_kv_heads(shape.num_heads, shape.num_kv_heads, size)
    return size * here / shape.num_kv_heads


def part_of(shape: ModelShape, size: int) -> ModelShape:
    """Return the shape of the largest part of a model that is divided over `size` GPUs.

    Whole on each of them: hidden states, learned positions, latents and what makes them, and the
    routers of experts. Raises ValueError as `refusal` says.
    """
    return shape if size == 1 else _largest_part(shape, size)


def refusal(shape: ModelShape, size: int) -> str:
    """Return why a model of these sizes cannot be divided over `size` GPUs; "" if it can."""
    if size == 1:
        return ""
    if shape.state_size:
        return f"a model with states cannot be split over {size} GPUs"
    if shape.num_heads % size:
        return f"{shape.num_heads} heads cannot be split over {size} GPUs"
    sizes = (shape.intermediate_size, shape.shared_intermediate_size, shape.dense_intermediate_size)
    short = [each for each in sizes if each and not fills_all(each, size)]
    if short:
        return f"{short[0]} features of an MLP cannot be split over {size} GPUs"
    return _cut_groups(shape, size)


def _cut_groups(shape: ModelShape, size: int) -> str:
    """Return which inputs of quantised weights have a rank's part that ends amid some that share a
    scale; "" if there are none."""
    if shape.weights is None or not shape.weights.group:
        return ""
    group, are_experts = shape.weights.group, shape.weights.of_experts
    bounds = _expert_bounds(shape) if are_experts else feature_bounds
    lengths = [shape.intermediate_size]
    if not are_experts:
        lengths.insert(0, shape.num_heads * shape.head_dim)
    for length in lengths:
        mine = gcd(group, length)
        if any(bounds(length, rank, size)[1] % mine for rank in range(size)):
            return f"{length} inputs in groups of {group} cannot be split over {size} GPUs"
    return ""


def _expert_bounds(shape: ModelShape) -> Callable[[int, int, int], tuple[int, int]]:
    return partial(expert_bounds, step=expert_step(shape.weights))


@lru_cache(maxsize=4096)  # a plan asks for these a million times
def _largest_part(shape: ModelShape, size: int) -> ModelShape:
    reason = refusal(shape, size)
    if reason:
        raise ValueError(reason)
    vocabulary = shape.vocab_size
    kv_heads = shape.num_kv_heads  # of latents, which all heads read
    if shape.latent is None:
        kv_heads = num_rank_kv_heads(shape.num_heads, kv_heads, size)
    widest = _expert_bounds(shape) if shape.num_experts > 1 else feature_bounds
    return replace(
        shape,
        num_heads=shape.num_heads // size,
        num_kv_heads=kv_heads,
        intermediate_size=widest(shape.intermediate_size, 0, size)[1],
        shared_intermediate_size=feature_bounds(shape.shared_intermediate_size, 0, size)[1],
        dense_intermediate_size=feature_bounds(shape.dense_intermediate_size, 0, size)[1],
        vocab_size=-(-vocabulary // size) if fills_all(vocabulary, size) else vocabulary,
    )
