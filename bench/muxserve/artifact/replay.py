"""Simulation of published runs: their requests, and each model's throughput by their definition."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from bench.muxserve.artifact.published import Run, Served
from bench.muxserve.artifact.reference import GPU, units_of_run
from muxcluster.placement.cost import Cost, cost_for, read_muxserve
from muxcluster.sim.core.simulate import simulate
from muxcluster.workload.arrival import Arrival, merged
from muxcluster.workload.marginals import Ints
from muxcluster.workload.metrics.records import Records
from muxcluster.workload.seeds import rng_for

PROFILE = Path("muxserve") / "llama_a100_profile.json"
# Tokens of the longest prompt or output: their sampling drops longer prompts, and sums of 2048.
_LONGEST = 1024
_ROUNDS = 20
_DISPATCH_S = 1000.0  # Their synthetic workloads send nothing after that


class Replayed(BaseModel):
    """By model: requests/s over the time to its own last completion, and mean seconds."""

    model_config = ConfigDict(frozen=True)

    per_s: dict[str, float]
    latency_s: dict[str, float]
    ttft_s: dict[str, float]
    num_jobs: int


def replay(run: Run, data: Path, seed: int) -> Replayed:
    """All meshes of `run`, from its first request to its last token."""
    arrivals = merged(_requests(model, seed) for model in run.models)
    result = simulate(units_of_run(run, _cost(data)), arrivals)
    done = {model.name: _finished(result.records, model.name) for model in run.models}
    return Replayed(
        per_s={name: len(rows) / float(rows["last_token_s"].max()) for name, rows in done.items()},
        latency_s={name: _mean(rows, "last_token_s") for name, rows in done.items()},
        ttft_s={name: _mean(rows, "first_token_s") for name, rows in done.items()},
        num_jobs=result.num_jobs,
    )


@lru_cache(maxsize=1)
def _cost(data: Path) -> Cost:
    return cost_for(GPU, 2, [read_muxserve(data / PROFILE)])


def _finished(records: Records, model: str) -> NDArray[np.void]:
    found = records.of_model(model)
    rows = found.where(found.is_finished).rows
    if not len(rows):
        raise ValueError(f"no request of {model} finished")
    return rows


def _mean(rows: NDArray[np.void], column: str) -> float:
    return float((rows[column] - rows["arrival_s"]).mean())


def _requests(model: Served, seed: int) -> Iterator[Arrival]:
    """`count` of them: Poisson at `rate_per_s`, or anywhere within `span_s` alike."""
    rng = rng_for(seed, "published", model.name)
    if model.span_s is None:
        times = np.cumsum(rng.exponential(1.0 / model.rate_per_s, model.count))
        times *= min(1.0, _DISPATCH_S / float(times[-1]))
    else:
        times = np.sort(rng.uniform(0.0, model.span_s, model.count))
    prompts = lengths(rng, model.prompt, model.count)
    outputs = lengths(rng, model.output, model.count)
    columns = zip(times.tolist(), prompts.tolist(), outputs.tolist(), strict=True)
    for index, (time_s, prompt, output) in enumerate(columns):
        yield Arrival(time_s, f"{model.name}/{index}", model.name, prompt, output)


def lengths(rng: np.random.Generator, mean: float, count: int) -> Ints:
    """int64 [count] from 1 to 1024, exponential but for the cut, and scaled to this very mean."""
    drawn: NDArray[np.float64] = rng.exponential(1.0, count)
    scale = mean
    for _ in range(_ROUNDS):
        scale *= mean / float(np.clip(drawn * scale, 1, _LONGEST).mean())
    return np.rint(np.clip(drawn * scale, 1, _LONGEST)).astype(np.int64)
