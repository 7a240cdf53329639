"""Everything the scheduler knows of one model of the unit."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from muxcluster.core.events import Rejected
from muxcluster.core.job import Job
from muxcluster.core.request import Request, ServiceClass
from muxcluster.core.served import ModelStats
from muxcluster.core.unitspec import ModelSpec
from muxcluster.kvcache.cache import ModelCache
from muxcluster.scheduling.state.arrivals import RecentArrivals
from muxcluster.scheduling.state.batch_scaling import BatchScaling
from muxcluster.scheduling.state.requests import LiveRequest, Waiting
from muxcluster.scheduling.state.running import RunningTable, TableRows


@dataclass(slots=True)
class Counters:
    """Totals since the start; they never decrease. Meanings as in core's ModelStats."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    num_shared_reads: int = 0
    num_preemptions: int = 0
    num_lent_columns: int = 0
    num_saved_slots: int = 0
    num_restored_slots: int = 0
    num_recomputed_tokens: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    num_non_finite: int = 0


class LoadMeter:
    """Interactive load of one model: moving averages, planned values until the first measurement.

    Batch requests do not count: they take what interactive ones leave.
    """

    def __init__(
        self, rate_per_s: float, mean_tokens: float, mean_held_s: float, time_constant_s: float
    ) -> None:
        self.rate_per_s = rate_per_s  # arrivals
        # Of requests that ended: prompt and output tokens, and for how long they held memory
        self.mean_tokens, self.mean_held_s = mean_tokens, mean_held_s
        self._time_constant_s = time_constant_s
        self.has_measured = False
        self._arrivals = 0
        self._ends = 0
        self._ended_tokens = 0
        self._held_s = 0.0

    def arrive(self) -> None:
        """Count an interactive request that was accepted."""
        self._arrivals += 1

    def end(self, num_tokens: int, held_s: float) -> None:
        """Count one that ended with `num_tokens` prompt and output tokens, `held_s` after its first
        job began, waits without memory left out."""
        self._ends += 1
        self._ended_tokens += num_tokens
        self._held_s += held_s

    def update(self, elapsed_s: float) -> None:
        """Fold in what was counted during the last `elapsed_s` > 0 seconds."""
        weight = 1.0
        if self.has_measured:
            weight = -math.expm1(-elapsed_s / self._time_constant_s)
        self.rate_per_s += weight * (self._arrivals / elapsed_s - self.rate_per_s)
        if self._ends:
            self.mean_tokens += weight * (self._ended_tokens / self._ends - self.mean_tokens)
            self.mean_held_s += weight * (self._held_s / self._ends - self.mean_held_s)
        self.has_measured = True
        self._arrivals = self._ends = self._ended_tokens = 0
        self._held_s = 0.0


class ModelState:
    """One model: its sequences in rows, its waiting requests, its measured load."""

    def __init__(
        self, spec: ModelSpec, kv: ModelCache, meter: LoadMeter, *, keeps_output: bool = True
    ) -> None:
        """keeps_output: see RunningTable."""
        self.spec = spec
        self.kv = kv  # its part of the unit's KV cache
        self.name = spec.name
        self.blocks_per_column = spec.shape.blocks_per_column
        self.block_tokens = kv.block_tokens  # in one block; a column has `blocks_per_column`
        self.running = RunningTable(spec.max_seqs, spec.max_model_len, keeps_output=keeps_output)
        self.waiting = Waiting()
        self.meter = meter
        self.arrivals = RecentArrivals()
        self.counters = Counters()
        self.peak_blocks = 0  # highest use since the last quota adaptation
        self.is_short = False  # blocks were refused since then
        self.scaling: BatchScaling | None = None  # of its padded batches
        if spec.padded is not None:
            limit = spec.padded
            self.scaling = BatchScaling(limit.row_bytes, limit.limit_bytes, spec.max_seqs)

    @property
    def num_live(self) -> int:
        """Number of accepted requests that have not ended."""
        return self.running.num_live + len(self.waiting)

    @property
    def has_batch_work(self) -> bool:
        """True where a request of the batch class has not ended."""
        return (
            self.running.num_batch > 0 or self.waiting.by_class[ServiceClass.BATCH].head is not None
        )

    @property
    def has_suspects(self) -> bool:
        """True where a suspect of failed jobs is here, see faults.py."""
        return self.running.num_suspects > 0 or self.waiting.suspects.head is not None

    def fitting(self, rows: TableRows, *, num_rows: int = 0, longest: int = 0) -> TableRows:
        """Return the first of `rows` that may decode in one batch; all where it is not padded.

        num_rows: others in the batch, of `longest` cached tokens at most.
        """
        if self.scaling is None:
            return rows
        lengths = self.running.num_computed[rows]
        return rows[: self.scaling.num_fitting(lengths, num_rows=num_rows, longest=longest)]

    def columns(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_tokens)

    def blocks(self, num_tokens: int) -> int:
        """Return the blocks that hold `num_tokens` tokens of one sequence."""
        return self.columns(num_tokens) * self.blocks_per_column

    def max_total(self, request: Request) -> int:
        """Return the prompt and output tokens at which `request` ends with `length`.

        A prompt that fills the context still gets one token: the last token is never computed.
        """
        num_prompt = len(request.prompt_tokens)
        longest = max(self.spec.max_model_len, num_prompt + 1)
        return min(num_prompt + request.sampling.max_tokens, longest)

    def uses_prefixes(self, live: LiveRequest) -> bool:
        """True where `live` may take from and give to the prefix cache."""
        return self.spec.prefix_caching and live.request.cacheable

    def refusal(self, request: Request, carry_blocks: int) -> Rejected | None:
        """Return why `request` can never end here, or None.

        carry_blocks: blocks that one sequence of the model can always get: its quota floor, or the
        pool where no quotas are in force. Prompt and max_tokens must fit into them together, or the
        request could be preempted for ever.
        """
        num_prompt = len(request.prompt_tokens)
        if num_prompt == 0:
            return Rejected(request.request_id, "invalid_value", "the prompt has no tokens")
        if num_prompt > self.spec.max_model_len:
            message = f"{num_prompt} prompt tokens exceed the context of {self.spec.max_model_len}"
            return Rejected(request.request_id, "context_length_exceeded", message)
        # The last token is never computed and needs no block.
        needed = self.blocks(max(num_prompt, self.max_total(request) - 1))
        if needed > carry_blocks:
            tokens = carry_blocks // self.blocks_per_column * self.block_tokens
            message = (
                f"prompt and max_tokens exceed the {tokens} tokens that memory has for one request"
            )
            return Rejected(request.request_id, "context_length_exceeded", message)
        return None

    def stats(self, step_time_error: float) -> ModelStats:
        """Return the model's state as numbers; counters never decrease.

        step_time_error: mean relative error of predicted step times.
        """
        counters = self.counters
        return ModelStats(
            name=self.name,
            num_running=self.running.num_live,
            num_waiting=len(self.waiting),
            quota_blocks=self.kv.quota,
            used_blocks=self.kv.used,
            cached_blocks=self.kv.num_cached,
            rate_per_s=self.meter.rate_per_s,
            is_rate_measured=self.meter.has_measured,
            prefix_queries=counters.prefix_queries,
            prefix_hits=counters.prefix_hits,
            num_shared_reads=counters.num_shared_reads,
            num_preemptions=counters.num_preemptions,
            num_lent_columns=counters.num_lent_columns,
            num_saved_slots=counters.num_saved_slots,
            num_restored_slots=counters.num_restored_slots,
            num_recomputed_tokens=counters.num_recomputed_tokens,
            prompt_tokens=counters.prompt_tokens,
            output_tokens=counters.output_tokens,
            num_non_finite=counters.num_non_finite,
            batch_blocks=self.kv.batch_used,
            num_lent=self.running.num_lent,
            waiting_tokens=self.waiting.num_tokens + self.running.num_uncomputed,
            padded_usage=0.0 if self.scaling is None else self.scaling.usage,
            backend=self.spec.backend,
            step_time_error=step_time_error,
        )

    def check(self, jobs: Sequence[Job]) -> None:
        """Raise AssertionError where rows, running `jobs` and blocks contradict each other."""
        table = self.running
        is_lent = self.kv.num_lent > 0
        assert (table.is_lent == is_lent).all(), "lent sequences are forgotten"
        table.check()
        in_jobs = sum(len(job.rows) for job in jobs if job.model == self.name)
        assert in_jobs == table.in_job.sum(), "a sequence is in two jobs or a lost one"
        full = self.kv.capacity < table.num_computed
        assert not (full & table.is_live).any(), "a computed token has no block"
