"""How long prompts and outputs are: two marginals, or pairs as they were seen together."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from muxcluster.workload.marginals import Ints, Marginal

Pair = tuple[Ints, Ints]


class Lengths(Protocol):
    """A distribution of (prompt tokens, output tokens)."""

    def draw(self, rng: np.random.Generator, count: int) -> Pair:
        """Two arrays int64 [count], all at least 1."""
        ...


@dataclass(frozen=True, slots=True)
class Independent:
    """Prompt and output each from a distribution of its own."""

    prompt: Marginal
    output: Marginal

    def draw(self, rng: np.random.Generator, count: int) -> Pair:
        """Prompts first, then outputs."""
        return self.prompt.draw(rng, count), self.output.draw(rng, count)


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Resamples (with replacement) pairs that were seen: prompt, output int64 [n].

    Raises ValueError for no pairs, unequal lengths or a length below 1.
    """

    prompt: NDArray[np.int64]
    output: NDArray[np.int64]

    def __post_init__(self) -> None:
        if not len(self.prompt) or self.prompt.shape != self.output.shape:
            raise ValueError("needs as many prompt as output lengths, and one at least")
        if min(self.prompt.min(), self.output.min()) < 1:
            raise ValueError("lengths are 1 token at least")

    def draw(self, rng: np.random.Generator, count: int) -> Pair:
        """Both lengths of one row stay together."""
        rows = rng.integers(len(self.prompt), size=count)
        return self.prompt[rows], self.output[rows]


@dataclass(frozen=True, slots=True)
class Limited:
    """Cut to what a model can take. Raises ValueError for limits below 1."""

    lengths: Lengths
    most_prompt: int
    most_output: int

    def __post_init__(self) -> None:
        if min(self.most_prompt, self.most_output) < 1:
            raise ValueError("limits are 1 token at least")

    def draw(self, rng: np.random.Generator, count: int) -> Pair:
        """Longer ones become exactly as long as the limit."""
        prompt, output = self.lengths.draw(rng, count)
        return np.minimum(prompt, self.most_prompt), np.minimum(output, self.most_output)
