"""Requests of bench/several_models.py and mixed_load.py, and which answers are in time."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

PROMPT_TOKENS = (32, 128)
OUTPUT_TOKENS = (16, 112)
# An answer is in time whose first token comes within TTFT_S of its arrival, and whose other tokens
# take TPOT_S each in the mean.
TTFT_S, TPOT_S = 0.5, 0.1
WARM_UP_S = 8.0  # of requests that are not measured, before all others


@dataclass(frozen=True, slots=True)
class Ask:
    """A request: `at_s` seconds after the start, greedy, of exactly `num_tokens` output tokens.

    Of an embedding model it is a text, answered with one token.
    """

    at_s: float
    model: str
    prompt: Sequence[int]
    num_tokens: int
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """When its first and last tokens came, in seconds from the start, and how many there were."""

    first_s: float
    last_s: float
    num_tokens: int

    def is_in_time(self, ask: Ask) -> bool:
        """Whether the answer is whole and met both targets."""
        if self.num_tokens != ask.num_tokens:
            return False
        tpot_s = (self.last_s - self.first_s) / max(1, self.num_tokens - 1)
        return self.first_s - ask.at_s <= TTFT_S and tpot_s <= TPOT_S


def poisson(rng: random.Random, rate: float, duration_s: float) -> Iterator[float]:
    """Seconds of arrivals, of `rate` a second."""
    at_s = rng.expovariate(rate)
    while at_s < duration_s:
        yield at_s
        at_s += rng.expovariate(rate)


def random_tokens(rng: random.Random, number: int, vocabulary: int) -> list[int]:
    return [rng.randrange(3, vocabulary) for _ in range(number)]


def zipf_asks(
    rng: random.Random, models: Sequence[str], rate: float, duration_s: float, vocabulary: int
) -> list[Ask]:
    """Requests of `rate` a second together; the n-th model has 1/n of the first one's."""
    weights = [1 / rank for rank in range(1, len(models) + 1)]
    return [
        Ask(
            at_s,
            rng.choices(models, weights)[0],
            random_tokens(rng, rng.randint(*PROMPT_TOKENS), vocabulary),
            rng.randint(*OUTPUT_TOKENS),
        )
        for at_s in poisson(rng, rate, duration_s)
    ]
