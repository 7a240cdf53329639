"""Draws one token per row under temperature, min-p, top-k and top-p; twin of the Triton kernel."""

import torch
from torch import Tensor

from muxcluster.kernels.on_gpu import triton_on_gpu

# Weights are whole numbers, the best token's is 2**42: their sums depend on no order, and those of
# 2**20 tokens still fit 63 bits. What such a step rounds off is below 3e-13 of the best token.
WEIGHT_BITS = 42

# exp(-29.2) is below one step: tokens farther from the best than this weigh nothing.
FARTHEST = 29.2

MAX_VOCAB = 1 << 20


@triton_on_gpu
def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    uniform: Tensor,
) -> Tensor:
    """Tokens int64 [rows].

    logits: fp32 [rows, vocab], not changed. NaN counts as impossible, +inf as the largest number;
        where nothing is possible every token is equally likely.
    temperature: float64 [rows]; 0 takes the best token, the lowest id on a tie.
    top_k: int64 [rows] in 1..vocab; vocab cuts nothing. top_p, min_p: float64 [rows] in 0..1;
        1 and 0 cut nothing.
    uniform: float64 [rows] in (0, 1).

    A token's distance is (best logit - its logit) / temperature in fp32, its weight exp(-distance).
    Min-p, then top-k, then top-p each keep a smallest set of nearest tokens of what the one before
    left; tokens that tie in distance with the last survivor survive too, so no sort order matters.
    The draw inverts the running sum of weights in vocabulary order.

    Instead of a sort, the distance of the last survivor is searched by bisection over its bits.
    Raises ValueError for wrong shapes, types or strides.
    """
    check_sample(logits, temperature, top_k, top_p, min_p, uniform)
    if not len(logits):
        return top_k.new_empty(0)
    distances, best = _distances(logits, temperature)
    weights = (distances.neg().exp() * 2.0**WEIGHT_BITS).long()
    limit = min_p.log().abs().float().clamp(max=FARTHEST)
    # Distances are not negative, so that their bits order as they do.
    bits = distances.view(torch.int32)
    bound = limit.view(torch.int32).unsqueeze(1)
    bound = _smallest(bits, torch.ones_like(weights), top_k.unsqueeze(1), bound)
    mass = _within(bits, weights, bound).sum(-1, keepdim=True)
    wanted = _share(mass, top_p.unsqueeze(1)).clamp(min=1)
    bound = torch.where(top_p.unsqueeze(1) < 1, _smallest(bits, weights, wanted, bound), bound)
    running = _within(bits, weights, bound).cumsum(-1)
    target = (running[:, -1:] * uniform.unsqueeze(1)).long().minimum(running[:, -1:] - 1)
    drawn = torch.searchsorted(running, target, right=True).squeeze(1)
    return torch.where(temperature > 0, drawn, best)


def check_sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    uniform: Tensor,
) -> None:
    """Raise ValueError unless the arguments are as `sample` says."""
    if (
        logits.dtype != torch.float32
        or logits.dim() != 2
        or (len(logits) and logits.stride(1) != 1)
    ):
        raise ValueError(
            "logits must be fp32 [rows, vocab] with tokens contiguous, "
            f"got {logits.dtype} {tuple(logits.shape)} with strides {logits.stride()}"
        )
    if not 1 <= logits.shape[1] <= MAX_VOCAB:
        raise ValueError(f"the vocabulary must have 1 to {MAX_VOCAB} tokens, not {logits.shape[1]}")
    floats = {"temperature": temperature, "top_p": top_p, "min_p": min_p, "uniform": uniform}
    for name, values in {**floats, "top_k": top_k}.items():
        dtype = torch.int64 if name == "top_k" else torch.float64
        if values.dtype != dtype or values.shape != logits.shape[:1]:
            raise ValueError(
                f"{name} must be {dtype} [{len(logits)}], got {values.dtype} {tuple(values.shape)}"
            )


def _distances(logits: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Return distances fp32 [rows, vocab] from each row's best token, and that token int64."""
    logits = logits.nan_to_num(nan=-torch.inf, neginf=-torch.inf)
    highest = logits.amax(-1, keepdim=True)
    logits = logits.masked_fill(highest.isneginf(), 0.0)
    scale = temperature.float().clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(1)
    # Of two zeros with unlike signs the gap would be -0.0, whose bits are the lowest of all.
    gap = logits.amax(-1, keepdim=True).sub(logits).abs_()
    return gap.div_(scale), logits.argmax(-1)


def _within(bits: Tensor, weights: Tensor, bound: Tensor) -> Tensor:
    """Return `weights` [rows, vocab] where bits <= bound [rows, 1], else 0."""
    return weights.masked_fill(bits > bound, 0)


def _share(mass: Tensor, top_p: Tensor) -> Tensor:
    """Return the smallest whole number of at least top_p * mass, and not above mass."""
    return (mass * top_p).ceil().long().minimum(mass)


def _smallest(bits: Tensor, weights: Tensor, wanted: Tensor, highest: Tensor) -> Tensor:
    """Return the smallest bound [rows, 1], at most `highest`, within which weights sum to
    `wanted`.
    """
    low = torch.full_like(highest, -1)
    high = highest
    while bool((high - low > 1).any()):
        middle = low + (high - low) // 2
        enough = _within(bits, weights, middle).sum(-1, keepdim=True) >= wanted
        high = torch.where(enough, middle, high)
        low = torch.where(enough, low, middle)
    return high
