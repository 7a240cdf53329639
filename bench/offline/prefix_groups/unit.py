"""One batch job on one simulated GPU, step by step, as on a server.

Llama-3.1-8B on one A100-80GB with 58 GB of KV, job times from the planner's roofline.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.events import Finished, Rejected
from muxcluster.core.job import WorkerSpec
from muxcluster.core.kvshape import KvShape, block_bytes
from muxcluster.core.unitspec import ModelSpec, SchedulerSpec, UnitSpec
from muxcluster.offline.choice import Unplanned
from muxcluster.offline.feed.feeder import BatchFeeder, Fed, Room
from muxcluster.placement.cost import Roofline
from muxcluster.placement.cost.resources import resource_model
from muxcluster.placement.hardware import gpu_named
from muxcluster.placement.shapes.known import shape_named
from muxcluster.sim.core.concurrency import Running
from muxcluster.sim.core.driver import UnitDriver
from muxcluster.sim.core.unit import SimModel, SimUnit
from muxcluster.sim.demand.feeding import SimFeed

SHAPE, GPU = shape_named("llama-3.1-8b"), gpu_named("A100-80GB")
RESOURCES = resource_model(SHAPE, GPU)
BLOCK_TOKENS = 16
KV_BYTES = 58e9
# Longer than the model allows by as much as one request of Mooncake's synthetic trace needs.
MAX_LEN = 139_264
CHUNK = 2048  # Most tokens of a job, decoding rows and chunks of prompts together
WHOLE = 16_384  # The same where prompts are computed whole, before anybody decodes
# Requests that run at once: vLLM's default, and more than memory has room for.
FEW_ROWS, MANY_ROWS = 256, 1024


@dataclass(frozen=True, slots=True)
class System:
    """How a job is run."""

    name: str
    order: str = "fcfs"  # a name of `offline.orders`
    keeps_prefixes: bool = True  # there is a prefix cache
    # prompts are cut into chunks that run together with decoding rows; else prompts go first
    chunks: bool = True
    most_rows: int = FEW_ROWS  # at once in `KV_BYTES`; proportionally fewer with less memory
    # a request is let in where the KV that all are expected to hold has room (BatchLLM's Alg. 2);
    # else where its prompt has, and preempted later.
    by_memory: bool = False


VLLM = System("vLLM", keeps_prefixes=False, chunks=False)
PREFIX = System("vLLM + prefix cache", chunks=False)
CHUNKED = System("vLLM + chunked prefill", keeps_prefixes=False)
BOTH = System("vLLM + both")
BOTH_MANY = System("vLLM + both, any number of requests", most_rows=MANY_ROWS)
GROUPED = System("groups", "dfs")
REORDERED = System("groups by R", "batchllm")
BATCHED = System("groups, token batching", "dfs", most_rows=MANY_ROWS, by_memory=True)
BATCHLLM = System("BatchLLM", "batchllm", most_rows=MANY_ROWS, by_memory=True)


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Every job of a run, in turn."""

    # end_s, tokens, prompt_tokens: float64 [n] each
    end_s: NDArray[np.float64]
    tokens: NDArray[np.float64]
    prompt_tokens: NDArray[np.float64]

    @property
    def cool_down_s(self) -> float:
        """When the last token of a prompt has been computed: only decodes are left."""
        return float(self.end_s[np.flatnonzero(self.prompt_tokens)[-1]])


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a run came to."""

    makespan_s: float
    saving: float  # share of the prompt tokens that was not computed (Eq. 2).
    requests_per_s: float
    num_recomputed: int
    steps: Steps


def run(job: Unplanned, system: System) -> Outcome:
    """The whole job, output lengths known to the plan. Raises RuntimeError where one is refused."""
    unit = _unit(int(job.size_bytes), system)
    kind = BatchFeeder if system.by_memory else _WithoutForecast
    feeder = kind(job.with_tree(), system.order)
    prompts = job.prompts
    noted = _Notes(SimFeed(feeder, unit.spec, "m", prompts, job.output_tokens))
    driver = UnitDriver(unit, noted, exact=False, feed=noted.feed)
    driver.advance(np.inf)
    driver.settle()
    if noted.feed.ran.num_refused:
        raise RuntimeError(f"{noted.feed.ran.num_refused} of {len(prompts)} requests were refused")
    (model,) = driver.scheduler.stats(driver.now, "u").models
    return Outcome(
        driver.now,
        model.prefix_hits / int(prompts.lengths.sum()),
        len(prompts) / driver.now,
        model.num_recomputed_tokens,
        noted.steps(),
    )


class _WithoutForecast(BatchFeeder):
    """A queue: what runs is left to the unit's memory and its limit of requests."""

    def take(self, room: Room) -> list[Fed]:
        """As many as wait for a few chunks."""
        return super().take(room._replace(size_bytes=1e18, other_bytes=0.0))


class _Notes:
    """The sink of one run."""

    def __init__(self, feed: SimFeed) -> None:
        self.feed = feed
        self._rows: list[tuple[float, float, float]] = []

    def first_token(self, request_id: str, now: float) -> None:
        """A prompt is computed."""
        self.feed.first_token(request_id)

    def end(self, event: Finished | Rejected, now: float) -> None:
        """A request has ended."""
        self.feed.end(event, now)

    def launched(self, driver: UnitDriver, entries: Sequence[Running]) -> None:
        """Nothing to note before a job ends."""

    def ran(self, driver: UnitDriver, entry: Running) -> None:
        """One job, or several equal decode steps, of which each has its line."""
        rows = entry.job.rows
        tokens = float(rows.counts.sum())
        prompt = float(rows.counts[(rows.counts > 1) | ~rows.samples].sum())
        step_s = (driver.now - entry.start_s) / entry.num_steps
        ends = (entry.start_s + step_s * (at + 1) for at in range(entry.num_steps))
        self._rows += [(end_s, tokens, prompt) for end_s in ends]

    def steps(self) -> Steps:
        """All of them; the run has ended."""
        return Steps(*np.array(self._rows, dtype=np.float64).reshape(-1, 3).T)


def _unit(size_bytes: int, system: System) -> SimUnit:
    shape = KvShape(SHAPE.num_layers, SHAPE.num_kv_heads, SHAPE.head_dim, 2)
    per_block = block_bytes(BLOCK_TOKENS, 2)
    most_rows = max(1, round(system.most_rows * size_bytes / KV_BYTES))
    model = ModelSpec(
        "m",
        "",
        shape,
        SHAPE.vocab_size,
        MAX_LEN,
        (),
        max_seqs=most_rows,
        prefix_caching=system.keeps_prefixes,
    )
    policy = SchedulerSpec(
        lane="mixed" if system.chunks else "temporal",
        token_budget=CHUNK if system.chunks else WHOLE,
        max_decode_rows=most_rows,
    )
    workers = (WorkerSpec(0, (1.0,)),)
    spec = UnitSpec("u", (model,), size_bytes // per_block, per_block, workers, policy)
    return SimUnit(spec, {"m": SimModel(SHAPE, Roofline(GPU))})
