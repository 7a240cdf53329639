"""Min-p, top-k and top-p as one threshold per row: tokens below it cannot be drawn."""

import torch
from torch import Tensor

# best tokens looked at first; only rows that they do not decide are sorted whole
NUM_CANDIDATES = 256


def thresholds(scores: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Return the smallest score [rows] that survives min-p, then top-k, then top-p.

    scores: fp32 [rows, vocab], logits over temperature with the row's best at 0. top_k: int64
    [rows] in 1..vocab. top_p, min_p: float64 [rows]. Each filter works on what the one before left,
    renormalised (as Hugging Face's warpers in a row; top-p: Holtzman et al. 2020). Tokens that tie
    with the last survivor survive too, so the result depends on no sort order.
    """
    vocab_size = scores.shape[1]
    num_best = min(NUM_CANDIDATES, vocab_size, int(top_k.max()) + 1)
    if vocab_size <= 4 * NUM_CANDIDATES:
        num_best = vocab_size
    best = scores.topk(num_best).values
    totals = _totals(scores, top_k, top_p, min_p)
    threshold, decided = _decide(best, totals, top_k, top_p, min_p)
    if num_best == vocab_size:
        return threshold
    decided &= (top_k <= num_best) | (top_k == vocab_size)
    for row in (~decided).nonzero().flatten().tolist():
        limits = [each[row : row + 1] for each in (totals, top_k, top_p, min_p)]
        candidates = scores[row][scores[row] >= _bound(vocab_size, *limits)]
        ordered = candidates.sort(descending=True).values.unsqueeze(0)
        threshold[row : row + 1] = _decide(ordered, *limits)[0]
    return threshold


def _bound(vocab_size: int, total: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Return a score [1] that every survivor of the row reaches: fewer tokens need sorting."""
    # All tokens of less than (1 - top_p) * total / vocab_size together weigh less than what top-p
    # cuts off, so that its cut lies above them; a thousandth is left for rounding.
    if total.isnan():
        return min_p.log() - 1e-3
    return ((1 - top_p) * total / vocab_size).log() - 1e-3


def _totals(scores: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Return the weight of the whole row, float64 [rows], if top-p alone cuts it; else NaN."""
    # The last entry of a running sum: unlike `sum`, its order does not depend on the batch.
    totals = torch.full_like(top_p, torch.nan)
    alone = ((top_p < 1) & (top_k >= scores.shape[1]) & (min_p == 0)).nonzero().squeeze(1)
    if len(alone):
        totals[alone] = scores[alone].exp().cumsum(-1, dtype=torch.float64)[:, -1]
    return totals


def _decide(
    best: Tensor, totals: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> tuple[Tensor, Tensor]:
    """Return thresholds [rows] from the best scores [rows, n], sorted, and whether they are sure.

    Sure (bool [rows]) is about top-p: with n < vocab, survivors or the end of the nucleus may lie
    beyond them.
    """
    num_best = best.shape[1]
    kth = best.gather(1, (top_k.clamp(max=num_best) - 1).unsqueeze(1)).squeeze(1)
    kth = kth.masked_fill(top_k > num_best, -torch.inf)
    floor = torch.maximum(kth, min_p.log().to(kth.dtype))
    weights = best.exp().masked_fill(best < floor.unsqueeze(1), 0.0)
    mass = weights.cumsum(-1, dtype=torch.float64)
    alone = ~totals.isnan()
    whole = torch.where(alone, totals, mass[:, -1])
    kept = (mass < (top_p * whole).unsqueeze(1)).sum(-1)
    last = best.gather(1, kept.clamp(max=num_best - 1).unsqueeze(1)).squeeze(1)
    threshold = torch.where(top_p < 1, torch.maximum(floor, last), floor)
    return threshold, (top_p >= 1) | torch.where(alone, kept < num_best, best[:, -1] < floor)
