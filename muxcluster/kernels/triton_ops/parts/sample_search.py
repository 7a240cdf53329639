"""Searches a row's distances for the cut of top-k or top-p, and gathers what is within it."""

import triton
import triton.language as tl

from muxcluster.kernels.sample import WEIGHT_BITS

_SCALE = tl.constexpr(2.0**WEIGHT_BITS)
_ONE = tl.constexpr(1 << WEIGHT_BITS)
INF_BITS = tl.constexpr(0x7F800000)


@triton.jit
def weights(bits, bound):
    """exp(-distance) in whole steps where bits <= bound, else 0: int64."""
    weight = tl.exp(-bits.to(tl.float32, bitcast=True)) * _SCALE
    return tl.where(bits <= bound, weight, 0.0).to(tl.int64)


@triton.jit
def tally(distances_ptr, bound, count, BLOCK: tl.constexpr, WEIGHS: tl.constexpr):
    """Of the first `count` tokens those whose distance's bits are at most `bound`: how many, their
    weight (0 unless WEIGHS), the farthest's bits; and the bits of the nearest beyond."""
    places = tl.arange(0, BLOCK)
    number = tl.zeros((BLOCK,), tl.int32)
    mass = tl.zeros((BLOCK,), tl.int64)
    farthest = tl.full((BLOCK,), -1, tl.int32)
    beyond = tl.full((BLOCK,), INF_BITS, tl.int32)
    for start in range(0, count, BLOCK):
        at = start + places
        bits = tl.load(distances_ptr + at, mask=at < count, other=INF_BITS)
        near = bits <= bound
        number += near.to(tl.int32)
        if WEIGHS:
            mass += weights(bits, bound)
        farthest = tl.maximum(farthest, tl.where(near, bits, -1))
        beyond = tl.minimum(beyond, tl.where(near, INF_BITS, bits))
    return tl.sum(number, 0), tl.sum(mass, 0), tl.max(farthest, 0), tl.min(beyond, 0)


@triton.jit
def share(mass, top_p):
    """The smallest whole number of at least top_p * mass, in 1..mass."""
    exact = mass * top_p
    whole = exact.to(tl.int64)
    whole += (whole < exact).to(tl.int64)
    return tl.maximum(tl.minimum(whole, mass), 1)


@triton.jit
def smallest(
    distances_ptr,
    wanted,
    high,
    reached,
    number,
    count,
    max_near,
    BLOCK: tl.constexpr,
    WEIGHS: tl.constexpr,
):
    """The smallest bound within which the first `count` tokens reach `wanted` in weight (WEIGHS)
    or number, what they reach there, and their number; or the first bound found that suffices
    and has at most `max_near` tokens. `high` suffices, with `reached` and `number` in it.

    `low` never suffices, `high` always does, and each pass moves one of them to the nearest token.
    Guesses take turns: interpolated, as if what is reached grew exponentially with distance (it
    nearly does where logits are normal); halfway between the distances; and at times halfway
    between their bits, which bounds the passes by 8 * 31 however the tokens lie.
    """
    low = tl.full((), -1, tl.int32)
    low_number = number * 0
    # The best token alone is at distance 0.
    low_reached = reached * 0 + (_ONE if WEIGHS else 1)
    turn = low * 0
    while (number > max_near) & (high - low > 1) & (number - low_number > 1):
        near = tl.maximum(low, 0).to(tl.float32, bitcast=True)
        far = high.to(tl.float32, bitcast=True)
        part = tl.full((), 0.5, tl.float32)
        if turn % 2 == 0:
            base = tl.log(low_reached.to(tl.float32))
            rise = tl.log(reached.to(tl.float32)) - base
            part = (tl.log(wanted.to(tl.float32)) - base) / tl.maximum(rise, 1e-6)
            part = tl.minimum(tl.maximum(part, 0.0), 1.0)
        guess = (near + (far - near) * part).to(tl.int32, bitcast=True)
        if turn % 8 == 7:
            guess = low + (high - low) // 2
        turn += 1
        guess = tl.minimum(tl.maximum(guess, low + 1), high - 1)
        now_number, mass, farthest, beyond = tally(distances_ptr, guess, count, BLOCK, WEIGHS)
        now = mass if WEIGHS else now_number.to(tl.int64)
        if now >= wanted:
            high = farthest
            number = now_number
            reached = now
        else:
            low = beyond - 1
            low_number = now_number
            low_reached = tl.maximum(now, low_reached)
    return high, reached, number


@triton.jit
def gather(distances_ptr, near_ptr, bound, vocab, BLOCK: tl.constexpr):
    """Move the distances within `bound` to the row's start, in order, and note their tokens."""
    places = tl.arange(0, BLOCK)
    found = 0
    for start in range(0, vocab, BLOCK):
        at = start + places
        bits = tl.load(distances_ptr + at, mask=at < vocab, other=INF_BITS)
        near = bits <= bound
        to = found + tl.cumsum(near.to(tl.int32), 0) - 1
        # Places that are written were all read before: they are in this block or an earlier one.
        tl.debug_barrier()
        tl.store(distances_ptr + to, bits, mask=near)
        tl.store(near_ptr + to, at, mask=near)
        found += tl.sum(near.to(tl.int32), 0)
