"""A burst of requests: arrival pattern and lengths of the Azure conversation trace, scaled down.

Source: AzurePublicDataset, `AzureLLMInferenceTrace_conv.csv` (Patel et al., Splitwise, ISCA
2024), or, where the file is absent, draws from its published statistics.
"""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

TRACE = Path("azure_llm_2023") / "AzureLLMInferenceTrace_conv.first30min.csv"


@dataclass(frozen=True, slots=True)
class TraceStats:
    """Published statistics of a trace: rate, coefficient of variation of gaps, lengths."""

    rate_per_s: float
    gap_cv: float
    prompt_mean: float
    prompt_median: float
    output_mean: float
    output_median: float


AZURE_CONV = TraceStats(5.53, 1.09, 1155.0, 1020.0, 211.0, 129.0)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Requests of a trace: arrival_s float [n] from 0 on, prompt and output tokens int [n]."""

    arrival_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much shorter the replayed requests are than the trace's."""

    prompt: float = 16.0  # prompt, output: divisors of the lengths
    output: float = 4.0
    most_prompt: int = 160  # most_prompt, most_output: longest allowed, in tokens
    most_output: int = 96


@dataclass(frozen=True, slots=True)
class Planned:
    """One request to send `at_s` seconds after the start of the burst."""

    at_s: float
    model: str
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Burst:
    """The requests, ascending in time, and a sentence that says where they come from."""

    requests: tuple[Planned, ...]
    source: str


def popularity(num_models: int, exponent: float = 1.2) -> NDArray[np.float64]:
    """Return a power law over ranks: the k-th model's share is proportional to k ** -exponent."""
    weights = np.power(np.arange(1, num_models + 1, dtype=np.float64), -exponent)
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def trace_rows(path: Path, count: int) -> Rows:
    """The first `count` rows of an Azure trace file. Raises OSError, ValueError."""
    with path.open(newline="") as file:
        rows = [row for row, _ in zip(csv.DictReader(file), range(count), strict=False)]
    # Its seven fraction digits are one more than datetime reads.
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp() for row in rows]
    return Rows(
        np.asarray(times) - times[0],
        np.asarray([int(row["ContextTokens"]) for row in rows]),
        np.asarray([int(row["GeneratedTokens"]) for row in rows]),
    )


def generated_rows(stats: TraceStats, count: int, rng: np.random.Generator) -> Rows:
    """Gamma gaps with the trace's rate and variation, log-normal lengths with its mean, median."""
    shape = stats.gap_cv**-2
    gaps = rng.gamma(shape, 1.0 / (stats.rate_per_s * shape), count)
    gaps[0] = 0.0
    return Rows(
        np.cumsum(gaps),
        _lengths(stats.prompt_mean, stats.prompt_median, count, rng),
        _lengths(stats.output_mean, stats.output_median, count, rng),
    )


def _lengths(mean: float, median: float, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    sigma = math.sqrt(2.0 * math.log(mean / median))
    return np.maximum(1, rng.lognormal(math.log(median), sigma, count)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class BurstSize:
    """Number of requests, span in seconds and seed of a burst."""

    num_requests: int = 90
    duration_s: float = 30.0
    seed: int = 0


def make_burst(
    models: Sequence[str], size: BurstSize, scale: Scale, data_dir: Path | None
) -> Burst:
    """Return the burst; equal arguments give an equal burst. Models are in falling order of
    popularity."""
    rng = np.random.default_rng(size.seed)
    trace = data_dir / TRACE if data_dir else None
    if trace is not None and trace.is_file():
        rows, origin = trace_rows(trace, size.num_requests), f"the trace {TRACE.name}"
    else:
        rows = generated_rows(AZURE_CONV, size.num_requests, rng)
        origin = "draws from the published statistics of the Azure conversation trace"
    arrivals = rows.arrival_s * (size.duration_s / max(rows.arrival_s[-1], 1e-9))
    chosen = rng.choice(len(models), size=size.num_requests, p=popularity(len(models)))
    prompts = _scaled(rows.prompt_tokens, scale.prompt, scale.most_prompt)
    outputs = _scaled(rows.output_tokens, scale.output, scale.most_output)
    planned = zip(arrivals, chosen, prompts, outputs, strict=True)
    source = (
        f"{size.num_requests} requests after {origin}, stretched to {size.duration_s:g} s; "
        f"prompts divided by {scale.prompt:g} (at most {scale.most_prompt} tokens), "
        f"outputs by {scale.output:g} (at most {scale.most_output})"
    )
    return Burst(
        tuple(Planned(float(t), models[m], int(p), int(o)) for t, m, p, o in planned), source
    )


def _scaled(lengths: NDArray[np.int64], divisor: float, most: int) -> NDArray[np.int64]:
    return np.clip(np.rint(lengths / divisor).astype(np.int64), 4, most)
