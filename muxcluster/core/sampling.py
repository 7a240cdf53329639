"""How one output token is chosen from logits, and when a request stops."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar that the text of a request's output must match, from some token on to its end.

    The state of its matcher is a function of the output tokens: whoever has these can go on.
    """

    # JSON, made by `constraints.grammars`; most are in llguidance's serialised form
    grammar: str
    # Ids of successive output tokens, such as those of "</think>": anything may come before them,
    # and the grammar holds after them; empty: it holds from the first token
    begins_after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling and stopping rules of one request, already validated at the edge.

    Stop *strings* are not here: the ingress finds them in text and aborts (design.md §6).
    """

    temperature: float = 1.0  # 0 means greedy
    top_k: int | None = None  # None means all tokens
    top_p: float = 1.0  # in (0, 1]
    min_p: float = 0.0  # in [0, 1], relative to the most likely token
    repetition_penalty: float = 1.0  # > 0, over prompt and output tokens (Hugging Face's rule)
    # frequency_penalty, presence_penalty: over output tokens only (OpenAI's rule)
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, bias) pairs added to the logits
    # Any 64-bit integer; the random number of output token i depends only on (seed, i)
    seed: int = 0
    max_tokens: int = 16  # most output tokens, counted over recoveries
    min_tokens: int = 0  # no end token before
    stop_token_ids: tuple[int, ...] = ()  # extra end tokens
    ignore_eos: bool = False  # the model's own end tokens do not stop
    # Top alternatives reported per output token; 0: only the chosen token; None: no logprobs
    logprobs: int | None = None
    prompt_logprobs: int | None = None  # the same for prompt tokens
    constraint: Constraint | None = None  # None: any text

    @property
    def ends_at_eos(self) -> bool:
        """True if the model's own end tokens end the request.

        They always do under a constraint, which allows none (or, with `ignore_eos`, none before it
        allows nothing else) until the text is whole.
        """
        return not self.ignore_eos or self.constraint is not None
