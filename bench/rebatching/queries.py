"""The queries of bench/dense.py: prompts of random tokens, and how many to generate."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from muxcluster.workload.files.azure import read_azure

# Tokens of a long and of a short prompt or output, both ends included, at batch 8.
LONG, SHORT = (64, 128), (8, 16)

MOST_OUTPUT = 128  # Of short queries: longer ones of the trace are left out

SHORT_PROMPT = (8, 32)
_TRACE = "azure_llm_2023/AzureLLMInferenceTrace_code.first30min.csv"


@dataclass(frozen=True, slots=True)
class Query:
    """A prompt, and how many tokens are generated: no end token stops one."""

    prompt: list[int]
    num_tokens: int


def mixed(count: int, scale: int, vocab_size: int, seed: int) -> list[Query]:
    """Long-short, short-long and short-short 1:1:2 (prompt-output) in random order.

    scale: factor of all lengths. The same seed gives the same queries.
    """
    rng = np.random.default_rng(seed)
    kinds = [(LONG, SHORT), (SHORT, LONG), (SHORT, SHORT), (SHORT, SHORT)]
    asked = [kinds[index % len(kinds)] for index in rng.permutation(count)]
    return [_query(rng, vocab_size, *(_drawn(rng, ends, scale) for ends in kind)) for kind in asked]


def short(count: int, vocab_size: int, seed: int, data: Path) -> list[Query]:
    """Short prompts; outputs at evenly spaced quantiles of the Azure code trace, in random order.

    Raises OSError where the trace is not in `data`.
    """
    rng = np.random.default_rng(seed)
    outputs = [arrival.output_tokens for arrival in read_azure(data / _TRACE, "code")]
    places = (rng.permutation(count) + 0.5) / count
    lengths = quantiles([each for each in outputs if each <= MOST_OUTPUT], places.tolist())
    return [_query(rng, vocab_size, _drawn(rng, SHORT_PROMPT, 1), each) for each in lengths]


def quantiles(values: Sequence[int], places: Sequence[float]) -> list[int]:
    """Those of `values` at `places` (0 to 1) of their order."""
    ordered = sorted(values)
    return [ordered[int(place * len(ordered))] for place in places]


def fewest_steps(queries: Sequence[Query], batch: int) -> float:
    """Steps that a static batch takes over those of one that is always full: the most that
    re-batching can gain where a step costs the same."""
    lengths = [query.num_tokens for query in queries]
    static = sum(max(lengths[first : first + batch]) for first in range(0, len(lengths), batch))
    return static / max(sum(lengths) / batch, max(lengths))


def _query(rng: np.random.Generator, vocab_size: int, prompt: int, output: int) -> Query:
    return Query(rng.integers(3, vocab_size, prompt).tolist(), output)


def _drawn(rng: np.random.Generator, ends: tuple[int, int], scale: int) -> int:
    return scale * int(rng.integers(ends[0], ends[1] + 1))
