"""Sampling without a sort: one program per row searches the cut, then inverts the running sum."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from muxcluster.kernels.sample import FARTHEST, check_sample
from muxcluster.kernels.triton_ops.parts.sample_search import (
    INF_BITS,
    gather,
    share,
    smallest,
    tally,
    weights,
)
from muxcluster.kernels.triton_ops.specimens.specimen import Specimen

_FARTHEST = tl.constexpr(FARTHEST)
_LARGEST = tl.constexpr(3.4028234663852886e38)
_SMALLEST = tl.constexpr(1.1754943508222875e-38)
# Once an eighth of the vocabulary is left, it is gathered and the rest not read again.
_NEAR_PART = 8
_BLOCK = 4096
_NUM_WARPS = 16


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    uniform: Tensor,
) -> Tensor:
    """As `muxcluster.kernels.sample.sample`, on whatever device the tensors are."""
    check_sample(logits, temperature, top_k, top_p, min_p, uniform)
    rows, vocab = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if not rows:
        return tokens
    distances = torch.empty((rows, vocab), dtype=torch.int32, device=logits.device)
    # A multiple of 16, so that one compiled kernel serves all vocabularies.
    max_near = 16 * triton.cdiv(vocab, 16 * _NEAR_PART)
    near = torch.empty((rows, max_near), dtype=torch.int32, device=logits.device)
    block = min(_BLOCK, triton.next_power_of_2(vocab))
    _sample[(rows,)](
        tokens,
        distances,
        near,
        logits,
        *(each.contiguous() for each in (temperature, top_k, top_p, min_p, uniform)),
        vocab,
        max_near,
        logits.stride(0),
        BLOCK=block,
        num_warps=max(1, min(_NUM_WARPS, block // 256)),
    )
    return tokens


@triton.jit
def _sample(
    tokens_ptr,  # [rows] int64, out
    distances_ptr,  # [rows, vocab] int32, scratch: bits of distances
    near_ptr,  # [rows, max_near] int32, scratch: tokens
    logits_ptr,  # [rows, vocab] fp32
    temperature_ptr,  # [rows] fp64
    top_k_ptr,  # [rows] int64
    top_p_ptr,  # [rows] fp64
    min_p_ptr,  # [rows] fp64
    uniform_ptr,  # [rows] fp64
    vocab,
    max_near,
    logits_stride,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * logits_stride
    distances_ptr += row * vocab
    near_ptr += row * max_near
    temperature = tl.load(temperature_ptr + row)
    highest, token = _best(logits_ptr, vocab, BLOCK)
    if temperature > 0:
        scale = tl.maximum(temperature.to(tl.float32), _SMALLEST)
        # The logarithm of 0 is not wanted; 1e-300 is beyond any distance that counts.
        min_p = tl.maximum(tl.load(min_p_ptr + row), 1e-300)
        limit = tl.minimum(tl.abs(tl.log(min_p)).to(tl.float32), _FARTHEST)
        bound = limit.to(tl.int32, bitcast=True)
        number, mass = _measure(distances_ptr, logits_ptr, highest, scale, bound, vocab, BLOCK)
        # Threads read what others of this program wrote.
        tl.debug_barrier()
        top_k = tl.load(top_k_ptr + row)
        top_p = tl.load(top_p_ptr + row)
        by_number = top_k < number
        wanted = share(mass, top_p)
        # Tokens to look at: all, until few enough are left to be gathered at the row's start.
        count = vocab
        if by_number:
            bound, _, number = smallest(
                distances_ptr, top_k, bound, number.to(tl.int64), number, count, max_near, BLOCK, 0
            )
        elif top_p < 1:
            bound, mass, number = smallest(
                distances_ptr, wanted, bound, mass, number, count, max_near, BLOCK, 1
            )
        if number <= max_near:
            gather(distances_ptr, near_ptr, bound, vocab, BLOCK)
            tl.debug_barrier()
            count = number
        if by_number:
            bound, _, number = smallest(
                distances_ptr, top_k, bound, number.to(tl.int64), number, count, 0, BLOCK, 0
            )
            _, mass, _, _ = tally(distances_ptr, bound, count, BLOCK, 1)
            wanted = share(mass, top_p)
        if top_p < 1:
            bound, mass, number = smallest(
                distances_ptr, wanted, bound, mass, number, count, 0, BLOCK, 1
            )
        target = (mass * tl.load(uniform_ptr + row)).to(tl.int64)
        token = _pick(distances_ptr, bound, tl.minimum(target, mass - 1), count, BLOCK)
        if count < vocab:
            token = tl.load(near_ptr + token).to(tl.int64)
    tl.store(tokens_ptr + row, token)


@triton.jit
def _possible(logits):
    """NaN becomes impossible, +inf the largest number."""
    return tl.minimum(tl.where(logits == logits, logits, -float("inf")), _LARGEST)


@triton.jit
def _best(logits_ptr, vocab, BLOCK: tl.constexpr):
    """The highest logit and the lowest token that has it."""
    places = tl.arange(0, BLOCK)
    highest = tl.full((BLOCK,), -float("inf"), tl.float32)
    tokens = places
    for start in range(0, vocab, BLOCK):
        at = start + places
        logits = _possible(tl.load(logits_ptr + at, mask=at < vocab, other=-float("inf")))
        tokens = tl.where(logits > highest, at, tokens)
        highest = tl.maximum(highest, logits)
    top = tl.max(highest, 0)
    token = tl.min(tl.where(highest == top, tokens, vocab), 0)
    return top, token.to(tl.int64)


@triton.jit
def _measure(distances_ptr, logits_ptr, highest, scale, bound, vocab, BLOCK: tl.constexpr):
    """Write the bits of every token's distance (highest - logit) / scale; all 0 where nothing
    is possible. Division is rounded as IEEE says, so that ties are the same everywhere.
    Returns how many tokens are within `bound`, and their weight."""
    places = tl.arange(0, BLOCK)
    number = tl.zeros((BLOCK,), tl.int32)
    mass = tl.zeros((BLOCK,), tl.int64)
    highest_or_0 = tl.where(highest == -float("inf"), 0.0, highest)
    for start in range(0, vocab, BLOCK):
        at = start + places
        inside = at < vocab
        logits = _possible(tl.load(logits_ptr + at, mask=inside, other=0.0))
        logits = tl.where(highest == -float("inf"), highest_or_0, logits)
        # Of two zeros with unlike signs the gap would be -0.0, whose bits are the lowest of all.
        gap = tl.abs(highest_or_0 - logits)
        distance = tl.div_rn(gap, tl.zeros((BLOCK,), tl.float32) + scale)
        bits = tl.where(inside, distance.to(tl.int32, bitcast=True), INF_BITS)
        tl.store(distances_ptr + at, bits, mask=inside)
        number += (bits <= bound).to(tl.int32)
        mass += weights(bits, bound)
    return tl.sum(number, 0), tl.sum(mass, 0)


@triton.jit
def _pick(distances_ptr, bound, target, count, BLOCK: tl.constexpr):
    """The first of `count` tokens at which the running sum of weights exceeds `target`."""
    places = tl.arange(0, BLOCK)
    chosen = tl.full((), 0, tl.int32)
    left = target
    running = target * 0
    for start in range(0, count, BLOCK):
        at = start + places
        bits = tl.load(distances_ptr + at, mask=at < count, other=INF_BITS)
        total = tl.sum(weights(bits, bound), 0)
        here = (running <= target) & (target < running + total)
        chosen = tl.where(here, start, chosen)
        left = tl.where(here, target - running, left)
        running += total
    at = chosen + places
    bits = tl.load(distances_ptr + at, mask=at < count, other=INF_BITS)
    sums = tl.cumsum(weights(bits, bound), 0)
    return (chosen + tl.sum((sums <= left).to(tl.int32), 0)).to(tl.int64)


def _specimen(block: int, num_warps: int) -> Specimen:
    pointers = {
        "tokens_ptr": "*i64",
        "distances_ptr": "*i32",
        "near_ptr": "*i32",
        "logits_ptr": "*fp32",
        "temperature_ptr": "*fp64",
        "top_k_ptr": "*i64",
        "top_p_ptr": "*fp64",
        "min_p_ptr": "*fp64",
        "uniform_ptr": "*fp64",
    }
    numbers = {"vocab": "i32", "max_near": "i32", "logits_stride": "i32"}
    return Specimen(
        name=f"sample fp32 block{block}",
        kernel=_sample,
        signature={**pointers, **numbers, "BLOCK": "constexpr"},
        constants={"BLOCK": block},
        divisible=frozenset({*pointers, *numbers}),
        num_warps=num_warps,
    )


SPECIMENS = (_specimen(_BLOCK, _NUM_WARPS), _specimen(1024, 4))
