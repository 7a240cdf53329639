"""Log-probabilities of tokens under the model's own distribution, before penalties."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.core.job import TokenLogprobs

_CHUNK_ROWS = 64  # rows worked on at once: bounds the copies of long prompts' logits


def token_logprobs(
    logits: Tensor, tokens: NDArray[np.int64], num_top: NDArray[np.int64]
) -> tuple[TokenLogprobs, ...]:
    """Return per row tokens[row] and the num_top[row] best tokens under softmax(logits[row]).

    logits: fp32 [rows, vocab]. num_top beyond the vocabulary gives the whole vocabulary. Ties rank
    equal and are listed lowest id first.
    """
    entries: list[TokenLogprobs] = []
    for start in range(0, len(tokens), _CHUNK_ROWS):
        part = slice(start, start + _CHUNK_ROWS)
        entries.extend(_chunk(logits[part], tokens[part], num_top[part].tolist()))
    return tuple(entries)


def _chunk(
    logits: Tensor, tokens: NDArray[np.int64], num_top: Sequence[int]
) -> list[TokenLogprobs]:
    logprobs = logits.float().log_softmax(-1)
    chosen = torch.from_numpy(tokens).to(logits.device).unsqueeze(1)
    values = logprobs.gather(1, chosen)
    ranks = ((logprobs > values).sum(-1) + 1).tolist()
    best = logprobs.topk(min(max(num_top), logprobs.shape[1]))
    top_values, top_tokens = best.values.cpu().numpy(), best.indices.cpu().numpy()
    order = np.lexsort((top_tokens, -top_values))
    top_values = np.take_along_axis(top_values, order, 1)
    top_tokens = np.take_along_axis(top_tokens, order, 1)
    return [
        TokenLogprobs(
            token=token,
            logprob=value,
            rank=rank,
            top_tokens=tuple(top_tokens[row, :wanted].tolist()),
            top_logprobs=tuple(top_values[row, :wanted].tolist()),
        )
        for row, (token, value, rank, wanted) in enumerate(
            zip(tokens.tolist(), values.squeeze(1).tolist(), ranks, num_top, strict=True)
        )
    ]
