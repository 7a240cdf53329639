"""Lengths of prompts and outputs: two marginals, or pairs from data."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from muxcluster.workload.marginals import Ints, Marginal

Pair = tuple[Ints, Ints]


class Lengths(Protocol):
    """A distribution of (prompt tokens, output tokens)."""

    def draw(self, rng: np.random.Generator, count: int) -> Pair:
        """Return two arrays int64 [count], all at least 1."""
        ...


@dataclass(frozen=True, slots=True)
class Independent:
    """Prompt and output from independent distributions."""

    prompt: Marginal
    output: Marginal

    def draw(self, rng: np.random.Generator, count: int) -> Pair:
        """Draw prompts first, then outputs."""
        return self.prompt.draw(rng, count), self.output.draw(rng, count)


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Resamples pairs from data, with replacement: prompt, output int64 [n].

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
        """Draw rows; both lengths of a row stay together."""
        rows = rng.integers(len(self.prompt), size=count)
        return self.prompt[rows], self.output[rows]


@dataclass(frozen=True, slots=True)
class Limited:
    """Lengths cut to a model's limits. Raises ValueError for limits below 1."""

    lengths: Lengths
    most_prompt: int
    most_output: int

    def __post_init__(self) -> None:
        if min(self.most_prompt, self.most_output) < 1:
            raise ValueError("limits are 1 token at least")

    def draw(self, rng: np.random.Generator, count: int) -> Pair:
        """Draw; longer lengths become exactly the limit."""
        prompt, output = self.lengths.draw(rng, count)
        return np.minimum(prompt, self.most_prompt), np.minimum(output, self.most_output)
