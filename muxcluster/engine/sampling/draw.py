"""Draws one token per row from what truncation left."""

import torch
from torch import Tensor

# Tokens per partial sum, among which the target is first found: one running sum per span, not per
# token.
_SPAN_TOKENS = 256
# Scores below have no weight on the CPU: beside the best token's weight of 1 theirs, under 2e-35,
# is lost in every sum. Exponentials near and below the smallest normal number, of -inf too, take
# the CPU 3 to 40 times as long, and constraints make most scores -inf.
_LEAST_SCORE = -80.0


def draw(scores: Tensor, threshold: Tensor | None, uniform: Tensor) -> Tensor:
    """Return tokens int64 [rows] by inversion of the cumulative distribution, in vocabulary order.

    scores: fp32 [rows, vocab], logits over temperature with the row's best at 0. threshold: [rows],
    tokens that score lower cannot be drawn; None: all can be. uniform: float64 [rows] in (0, 1).
    """
    weights = _weights(scores, threshold)
    sums = weights.sum(-1, dtype=torch.float64)
    mass = sums.cumsum(-1)
    span, target = _pick(sums, uniform * mass[:, -1])
    rows = torch.arange(len(scores), device=scores.device)
    token, _ = _pick(weights[rows, span].double(), target)
    return span * _SPAN_TOKENS + token


def _weights(scores: Tensor, threshold: Tensor | None) -> Tensor:
    """Return exp(scores), 0 where cut, as [rows, spans, _SPAN_TOKENS] with zeros at the end."""
    rows, vocab_size = scores.shape
    spans = -(-vocab_size // _SPAN_TOKENS)
    padded = scores.new_zeros(rows, spans * _SPAN_TOKENS)
    weights = padded[:, :vocab_size]
    # A comparison written as numbers: many times faster than masked_fill on the CPU.
    if scores.device.type == "cpu":
        cut = scores.new_tensor([_LEAST_SCORE]) if threshold is None else threshold
        torch.ge(scores, cut.clamp(min=_LEAST_SCORE).unsqueeze(1), out=weights)
        weights.mul_(scores.clamp(min=_LEAST_SCORE).exp_())
    elif threshold is not None:
        torch.ge(scores, threshold.unsqueeze(1), out=weights)
        weights.mul_(scores.exp())
    else:
        torch.exp(scores, out=weights)
    return padded.view(rows, spans, _SPAN_TOKENS)


def _pick(weights: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first place [rows] where the running sum of weights [rows, n] exceeds target.

    Returns also the rest of the target there. A place without weight is never picked, whatever
    rounding did.
    """
    mass = weights.cumsum(-1)
    last = torch.searchsorted(mass, mass[:, -1:].contiguous())
    place = torch.searchsorted(mass, target.unsqueeze(1), right=True).minimum(last)
    left = target - (mass - weights).gather(1, place).squeeze(1)
    return place.squeeze(1), left.clamp_(min=0)
