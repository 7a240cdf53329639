"""Reference attention in float64 over whole keys and values."""

import torch
from torch import Tensor

from bench.gpu.kernel_cases.paged import Paged


def dense_attention(
    query: Tensor,
    sequences: Paged,
    row: int,
    *,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """[tokens, heads, head_dim] in float64; the last query is at the row's last position."""
    keys, values = sequences.dense(row).double()
    group = query.shape[1] // keys.shape[0]
    keys, values = (part.repeat_interleave(group, 0) for part in (keys, values))
    scores = query.double().transpose(0, 1) @ keys.transpose(1, 2) * query.shape[2] ** -0.5
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    length = keys.shape[1]
    places = torch.arange(length, device=query.device)
    distance = places[length - len(query) :, None] - places
    seen = distance >= 0
    if sliding_window is not None:
        seen &= distance < sliding_window
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        column = sinks.double()[:, None, None].expand(-1, len(query), 1)
        scores = torch.cat((scores, column), -1)
    weights = scores.softmax(-1)[..., :length]
    return (weights @ values).transpose(0, 1)
