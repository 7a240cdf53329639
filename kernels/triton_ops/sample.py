"""Sampling without a sort: one program a row searches the cut, then inverts the running sum."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.sample import FARTHEST, WEIGHT_BITS, check_sample
from kernels.triton_ops.specimen import Specimen

_SCALE = tl.constexpr(2.0**WEIGHT_BITS)
_FARTHEST = tl.constexpr(FARTHEST)
_LARGEST = tl.constexpr(3.4028234663852886e38)
_SMALLEST = tl.constexpr(1.1754943508222875e-38)
_INF_BITS = tl.constexpr(0x7F800000)
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
    """As `kernels.sample.sample`, on whatever device the tensors are."""
    check_sample(logits, temperature, top_k, top_p, min_p, uniform)
    rows, vocab = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if not rows:
        return tokens
    distances = torch.empty((rows, vocab), dtype=torch.int32, device=logits.device)
    block = min(_BLOCK, triton.next_power_of_2(vocab))
    _sample[(rows,)](
        tokens,
        distances,
        logits,
        *(each.contiguous() for each in (temperature, top_k, top_p, min_p, uniform)),
        vocab,
        logits.stride(0),
        BLOCK=block,
        num_warps=max(1, min(_NUM_WARPS, block // 256)),
    )
    return tokens


@triton.jit
def _sample(
    tokens_ptr,  # [rows] int64, out
    distances_ptr,  # [rows, vocab] int32, scratch: bits of each token's distance
    logits_ptr,  # [rows, vocab] fp32
    temperature_ptr,  # [rows] fp64
    top_k_ptr,  # [rows] int64
    top_p_ptr,  # [rows] fp64
    min_p_ptr,  # [rows] fp64
    uniform_ptr,  # [rows] fp64
    vocab,
    logits_stride,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * logits_stride
    distances_ptr += row * vocab
    temperature = tl.load(temperature_ptr + row)
    highest, token = _best(logits_ptr, vocab, BLOCK)
    if temperature > 0:
        scale = tl.maximum(temperature.to(tl.float32), _SMALLEST)
        _measure(distances_ptr, logits_ptr, highest, scale, vocab, BLOCK)
        # Threads read what others of this program wrote.
        tl.debug_barrier()
        min_p = tl.maximum(tl.load(min_p_ptr + row), 1e-300)
        limit = tl.abs(tl.log(min_p)).to(tl.float32)
        bound = tl.minimum(limit, _FARTHEST).to(tl.int32, bitcast=True)
        number, mass, _, _ = _tally(distances_ptr, bound, vocab, BLOCK)
        top_k = tl.load(top_k_ptr + row)
        if top_k < number:
            bound, number, mass = _smallest(
                distances_ptr, top_k, 0, bound, number, mass, vocab, BLOCK
            )
        top_p = tl.load(top_p_ptr + row)
        if top_p < 1:
            wanted = _share(mass, top_p)
            bound, number, mass = _smallest(
                distances_ptr, 0, wanted, bound, number, mass, vocab, BLOCK
            )
        target = (mass * tl.load(uniform_ptr + row)).to(tl.int64)
        target = tl.minimum(target, mass - 1)
        token = _pick(distances_ptr, bound, target, vocab, BLOCK)
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
def _measure(distances_ptr, logits_ptr, highest, scale, vocab, BLOCK: tl.constexpr):
    """Write the bits of every token's distance (highest - logit) / scale; all 0 where nothing
    is possible. Division is rounded as IEEE says, so that ties are the same everywhere."""
    places = tl.arange(0, BLOCK)
    highest_or_0 = tl.where(highest == -float("inf"), 0.0, highest)
    for start in range(0, vocab, BLOCK):
        at = start + places
        logits = _possible(tl.load(logits_ptr + at, mask=at < vocab, other=0.0))
        logits = tl.where(highest == -float("inf"), highest_or_0, logits)
        # Of two zeros with unlike signs the gap would be -0.0, whose bits are the lowest of all.
        gap = tl.abs(highest_or_0 - logits)
        distance = tl.div_rn(gap, tl.zeros((BLOCK,), tl.float32) + scale)
        tl.store(distances_ptr + at, distance.to(tl.int32, bitcast=True), mask=at < vocab)


@triton.jit
def _weights(bits, bound):
    """exp(-distance) in whole steps where bits <= bound, else 0: int64."""
    weight = tl.exp(-bits.to(tl.float32, bitcast=True)) * _SCALE
    return tl.where(bits <= bound, weight, 0.0).to(tl.int64)


@triton.jit
def _tally(distances_ptr, bound, vocab, BLOCK: tl.constexpr):
    """Tokens whose distance's bits are at most `bound`: how many, their weight and the farthest's
    bits; and the bits of the nearest token beyond."""
    places = tl.arange(0, BLOCK)
    number = tl.zeros((BLOCK,), tl.int32)
    mass = tl.zeros((BLOCK,), tl.int64)
    farthest = tl.full((BLOCK,), -1, tl.int32)
    beyond = tl.full((BLOCK,), _INF_BITS, tl.int32)
    for start in range(0, vocab, BLOCK):
        at = start + places
        bits = tl.load(distances_ptr + at, mask=at < vocab, other=_INF_BITS)
        near = bits <= bound
        number += near.to(tl.int32)
        mass += _weights(bits, bound)
        farthest = tl.maximum(farthest, tl.where(near, bits, -1))
        beyond = tl.minimum(beyond, tl.where(near, _INF_BITS, bits))
    return tl.sum(number, 0), tl.sum(mass, 0), tl.max(farthest, 0), tl.min(beyond, 0)


@triton.jit
def _share(mass, top_p):
    """The smallest whole number of at least top_p * mass, in 1..mass."""
    exact = mass * top_p
    whole = exact.to(tl.int64)
    whole += (whole < exact).to(tl.int64)
    return tl.maximum(tl.minimum(whole, mass), 1)


@triton.jit
def _smallest(
    distances_ptr, wanted_number, wanted_mass, high, number, mass, vocab, BLOCK: tl.constexpr
):
    """The smallest bound within which there are `wanted_number` tokens and `wanted_mass` weight,
    and how many and what weight there are. `number` and `mass` within `high` suffice.

    `low` never suffices, `high` always does. Every other guess is interpolated, as if tokens lay
    evenly between them (few passes where they nearly do), the rest halve the bits (at most 62
    passes in all); each pass moves its end to the nearest token.
    """
    low = tl.full((), -1, tl.int32)
    low_number = number * 0
    low_mass = mass * 0
    interpolates = low < 0
    while (high - low > 1) & (number - low_number > 1):
        guess = low + (high - low) // 2
        if interpolates:
            by_number = (wanted_number - low_number).to(tl.float32) / (number - low_number)
            by_mass = (wanted_mass - low_mass).to(tl.float32) / tl.maximum(mass - low_mass, 1)
            near = tl.maximum(low, 0).to(tl.float32, bitcast=True)
            far = high.to(tl.float32, bitcast=True)
            between = near + (far - near) * tl.maximum(by_number, by_mass)
            guess = between.to(tl.int32, bitcast=True)
            guess = tl.minimum(tl.maximum(guess, low + 1), high - 1)
        interpolates = interpolates == 0
        now_number, now_mass, farthest, beyond = _tally(distances_ptr, guess, vocab, BLOCK)
        if (now_number >= wanted_number) & (now_mass >= wanted_mass):
            high = farthest
            number = now_number
            mass = now_mass
        else:
            low = beyond - 1
            low_number = now_number
            low_mass = now_mass
    return high, number, mass


@triton.jit
def _pick(distances_ptr, bound, target, vocab, BLOCK: tl.constexpr):
    """The first token at which the running sum of weights exceeds `target`."""
    places = tl.arange(0, BLOCK)
    chosen = tl.full((), 0, tl.int32)
    left = target
    running = target * 0
    for start in range(0, vocab, BLOCK):
        at = start + places
        bits = tl.load(distances_ptr + at, mask=at < vocab, other=_INF_BITS)
        total = tl.sum(_weights(bits, bound), 0)
        here = (running <= target) & (target < running + total)
        chosen = tl.where(here, start, chosen)
        left = tl.where(here, target - running, left)
        running += total
    at = chosen + places
    bits = tl.load(distances_ptr + at, mask=at < vocab, other=_INF_BITS)
    sums = tl.cumsum(_weights(bits, bound), 0)
    return (chosen + tl.sum((sums <= left).to(tl.int32), 0)).to(tl.int64)


def _specimen(block: int, num_warps: int) -> Specimen:
    pointers = {
        "tokens_ptr": "*i64",
        "distances_ptr": "*i32",
        "logits_ptr": "*fp32",
        "temperature_ptr": "*fp64",
        "top_k_ptr": "*i64",
        "top_p_ptr": "*fp64",
        "min_p_ptr": "*fp64",
        "uniform_ptr": "*fp64",
    }
    numbers = {"vocab": "i32", "logits_stride": "i32"}
    return Specimen(
        name=f"sample fp32 block{block}",
        kernel=_sample,
        signature={**pointers, **numbers, "BLOCK": "constexpr"},
        constants={"BLOCK": block},
        divisible=frozenset({*pointers, *numbers}),
        num_warps=num_warps,
    )


SPECIMENS = (_specimen(_BLOCK, _NUM_WARPS), _specimen(1024, 4))
