"""The best token of every row."""

import torch
from torch import Tensor

# The best span is found first: torch's CPU maximum over values is vectorised, argmax is not.
_SPAN_TOKENS = 256


def best_tokens(logits: Tensor) -> Tensor:
    """Return int64 [rows], the lowest id on a tie. logits: [rows, vocab] without NaN."""
    if logits.is_cuda:
        return logits.argmax(-1)
    rows, vocab_size = logits.shape
    num_whole = vocab_size // _SPAN_TOKENS
    spans = logits[:, : num_whole * _SPAN_TOKENS]
    best = spans.reshape(rows, num_whole, _SPAN_TOKENS).amax(-1)
    rest = logits[:, num_whole * _SPAN_TOKENS :]
    if rest.shape[1]:
        best = torch.cat((best, rest.amax(-1, keepdim=True)), dim=1)
    first = best.argmax(-1) * _SPAN_TOKENS
    places = first.unsqueeze(1) + torch.arange(_SPAN_TOKENS)
    # Past the end the last token is repeated: it ranks behind itself.
    found: Tensor = logits.gather(1, places.clamp_(max=vocab_size - 1)).argmax(-1)
    return first + found
