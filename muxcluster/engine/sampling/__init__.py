"""From logits to tokens: per-slot parameters, penalties, truncation, drawing and logprobs."""
