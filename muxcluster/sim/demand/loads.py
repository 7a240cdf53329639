"""Sources of a simulation's requests, as values that can be sent to another process."""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from muxcluster.core.errors import ConfigError
from muxcluster.core.request import ServiceClass
from muxcluster.placement.problem import Demand
from muxcluster.workload.arrival import Arrival
from muxcluster.workload.files.azure import read_azure
from muxcluster.workload.files.mooncake import CONVERSATION_SPREAD_S, read_mooncake
from muxcluster.workload.files.store import load
from muxcluster.workload.files.streams import open_text
from muxcluster.workload.generate import Source, generate
from muxcluster.workload.lengths import Independent
from muxcluster.workload.marginals import Constant, LogNormal
from muxcluster.workload.processes import Poisson
from muxcluster.workload.reshape import assigned, between, sped_up

Form = Literal["muxcluster", "azure", "mooncake"]
_LONGEST_LINE = 1 << 20
_FORMS = "muxcluster's own JSONL, Azure's CSV or Mooncake's JSONL"


class Load(Protocol):
    """A stream of requests, the same for the same seed."""

    def arrivals(self, seed: int, end_s: float) -> Iterator[Arrival]:
        """Return the requests before `end_s`, in order of time."""
        ...


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Requests drawn from distributions, one source per model."""

    sources: tuple[Source, ...]

    def arrivals(self, seed: int, end_s: float) -> Iterator[Arrival]:
        """Return the requests, see `muxcluster.workload.generate`."""
        return generate(self.sources, seed, end_s)


def poisson_load(demands: Iterable[Demand], sigma: float) -> Synthetic:
    """Return Poisson arrivals at the demands' rates, with log-normal lengths of their means (before
    the cut at `max_model_len`), and their batch requests. sigma: deviation of the logarithm, 0 for
    constant lengths."""
    return Synthetic(tuple(source for demand in demands for source in _sources(demand, sigma)))


def _sources(demand: Demand, sigma: float) -> Iterator[Source]:
    def lengths(prompt_tokens: float, output_tokens: float) -> Independent:
        most = max(1, demand.max_model_len - 1)
        # lengths of at least one token whose mean is one are all one (embedding models)
        output = Constant(1) if output_tokens == 1 else log_normal(output_tokens, sigma, most)
        return Independent(log_normal(prompt_tokens, sigma, most), output)

    own = lengths(demand.prompt_tokens, demand.output_tokens)
    yield Source(demand.name, Poisson(demand.rate), own)
    batch = demand.backlog
    if batch is not None:
        theirs = lengths(batch.prompt_tokens, batch.output_tokens)
        yield Source(demand.name, Poisson(batch.rate), theirs, ServiceClass.BATCH)


def log_normal(mean: float, sigma: float, most: int) -> LogNormal:
    """Return the distribution with this mean before the cut at `most`."""
    return LogNormal(math.log(mean) - sigma * sigma / 2, sigma, most)


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded stream."""

    path: Path
    form: Form
    # (model, requests/s) in whose proportion requests get models if the trace names none.
    popularity: tuple[tuple[str, float], ...]
    speed: float = 1.0  # times are divided by it
    digest: str = ""  # of the file's content

    def arrivals(self, seed: int, end_s: float) -> Iterator[Arrival]:
        """Return the requests from the file's beginning. Raises ConfigError if malformed."""
        return between(sped_up(self._read(seed), self.speed), 0.0, end_s)

    def _read(self, seed: int) -> Iterator[Arrival]:
        if self.form == "muxcluster":
            return load(self.path)
        if self.form == "azure":
            found = read_azure(self.path, "trace")
        else:
            found = read_mooncake(self.path, "trace", CONVERSATION_SPREAD_S, seed)
        return assigned(found, dict(self.popularity), seed)


def form_of(path: Path) -> Form:
    """Return the format of a trace by its first line. Raises ConfigError for another file."""
    try:
        with open_text(path) as file:
            line = file.readline(_LONGEST_LINE)
    except FileNotFoundError as error:
        raise ConfigError(path, "", "no such file") from error
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(path, "", f"cannot be read as a trace: {error}") from error
    if {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} <= set(line.strip().split(",")):
        return "azure"
    keys = _keys(line)
    if "muxcluster_workload" in keys:
        return "muxcluster"
    if {"timestamp", "input_length", "hash_ids"} <= keys:
        return "mooncake"
    raise ConfigError(path, "", f"no known trace: expected {_FORMS}")


def _keys(line: str) -> set[str]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return set()
    return set(fields) if isinstance(fields, dict) else set()
