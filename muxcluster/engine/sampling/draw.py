"""Drawing one token a row from what truncation left."""

import torch
from torch import Tensor


def draw(scores: Tensor, threshold: Tensor, uniform: Tensor) -> Tensor:
    """Tokens int64 [rows] by inversion of the cumulative distribution, in vocabulary order.

    scores: fp32 [rows, vocab], logits over temperature with the row's best at 0.
    threshold: [rows]; tokens that score lower cannot be drawn. uniform: float64 [rows] in (0, 1).
    """
    weights = scores.exp().masked_fill_(scores < threshold.unsqueeze(1), 0.0)
    mass = weights.cumsum(-1, dtype=torch.float64)
    # Strictly right of the target, so a token without weight is never met.
    target = (uniform * mass[:, -1]).unsqueeze(1)
    return torch.searchsorted(mass, target, right=True).squeeze(1)
