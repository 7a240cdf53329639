"""How one output token is chosen from logits, and when a request stops."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling and stopping rules of one request, already validated at the edge.

    Stop *strings* are not here: the ingress finds them in text and aborts (DESIGN.md §6).

    temperature: 0 means greedy.
    top_k: None means all tokens. top_p in (0, 1]. min_p in [0, 1], relative to the best token.
    repetition_penalty: > 0, over prompt and output tokens (Hugging Face's rule).
    frequency_penalty, presence_penalty: over output tokens only (OpenAI's rule).
    logit_bias: (token id, bias) pairs added to the logits.
    seed: any 64-bit integer; the random number of output token i depends only on (seed, i).
    max_tokens: most output tokens, counted over recoveries. min_tokens: no end token before.
    stop_token_ids: extra end tokens. ignore_eos: the model's own end tokens do not stop.
    logprobs: number of top alternatives reported per output token (0 = the chosen token only),
        None = no logprobs. prompt_logprobs: the same for prompt tokens.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    max_tokens: int = 16
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
