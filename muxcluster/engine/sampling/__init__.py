"""From logits to tokens: parameters by table row, penalties, truncation, drawing and logprobs."""
