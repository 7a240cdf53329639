"""Everything the scheduler knows of one model of the unit."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.events import Rejected
from muxcluster.core.job import Job
from muxcluster.core.request import Request, ServiceClass
from muxcluster.core.served import ModelStats
from muxcluster.core.unitspec import ModelSpec
from muxcluster.kvcache.cache import ModelCache
from muxcluster.kvcache.tables import array_bytes
from muxcluster.scheduling.state.arrivals import RecentArrivals
from muxcluster.scheduling.state.batch_scaling import BatchScaling
from muxcluster.scheduling.state.places import AdapterPlaces
from muxcluster.scheduling.state.requests import LiveRequest, Waiting
from muxcluster.scheduling.state.running import RunningTable, TableRows
from muxcluster.scheduling.state.turns import TenantTurns

_MOST_ENDS = 1e9  # so many stand for all, where quotas stay as planned: means are never inf / inf
_LEAST_ENDS = 8.0  # ends whose mean lengths count, of a model that is asked rarely


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
    num_constrained: int = 0
    mask_wait_s: float = 0.0
    num_forced: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


class Held(NamedTuple):
    """What interactive requests that have not ended hold, or have had, so far."""

    seconds: float = 0.0  # since the first jobs of each, waits without memory left out
    output_tokens: int = 0


class LoadMeter:
    """Interactive load of one model: moving averages that start from planned values.

    Batch requests do not count: they take what interactive ones leave.
    """

    # Those that end first are the short ones: their lengths alone, or the time for which they held
    # memory, would make a model with long outputs look small until its first long ones end. So
    # lengths are averaged with the plan's, and the time is that of a token, of all that run.

    def __init__(
        self,
        rate_per_s: float,
        prompt_tokens: float,
        output_tokens: float,
        token_s: float,
        time_constant_s: float,
    ) -> None:
        """Take what is planned. prompt_tokens, output_tokens: means of a request. token_s: from
        token to token."""
        self.rate_per_s = rate_per_s  # arrivals
        self._time_constant_s = time_constant_s
        self.has_measured = False
        self._arrivals = 0
        # Sums over the last ends: the plan counts as many as it expects within the time constant
        planned = min(_MOST_ENDS, max(_LEAST_ENDS, rate_per_s * time_constant_s))
        self._ends = planned
        self._prompt_tokens = planned * prompt_tokens
        self._output_tokens = planned * output_tokens
        # Sums over the last output tokens; the plan counts as one request
        self._decoded = max(1.0, output_tokens)
        self._held_s = self._decoded * token_s
        self._before = Held()  # of those that had not ended at the last update
        self._ended = Held()  # of those that ended since

    @property
    def mean_tokens(self) -> float:
        """Prompt and output tokens of a request."""
        return (self._prompt_tokens + self._output_tokens) / self._ends

    @property
    def mean_output_tokens(self) -> float:
        return self._output_tokens / self._ends

    @property
    def mean_held_s(self) -> float:
        """Seconds for which a request holds memory."""
        return self._held_s / self._decoded * self._output_tokens / self._ends

    def arrive(self) -> None:
        """Count an interactive request that was accepted."""
        self._arrivals += 1

    def end(self, prompt_tokens: int, held: Held) -> None:
        """Count one that ended."""
        self._ends += 1
        self._prompt_tokens += prompt_tokens
        self._output_tokens += held.output_tokens
        self._ended = Held(
            self._ended.seconds + held.seconds, self._ended.output_tokens + held.output_tokens
        )

    def update(self, elapsed_s: float, running: Held) -> None:
        """Fold in the last `elapsed_s` > 0 seconds. running: of all that have not ended."""
        faded = math.exp(-elapsed_s / self._time_constant_s)
        weight = 1.0 - faded if self.has_measured else 1.0
        self.rate_per_s += weight * (self._arrivals / elapsed_s - self.rate_per_s)
        self.has_measured = True
        self._arrivals = 0
        self._fade_ends()
        seconds = self._ended.seconds + running.seconds - self._before.seconds
        decoded = self._ended.output_tokens + running.output_tokens - self._before.output_tokens
        if decoded > 0 and seconds > 0:  # an abort takes back what was counted of it
            self._held_s = faded * self._held_s + seconds
            self._decoded = faded * self._decoded + decoded
        self._before, self._ended = running, Held()

    def _fade_ends(self) -> None:
        """Forget ends by their number: those of a model that is rarely asked stay for longer."""
        most = max(_LEAST_ENDS, self.rate_per_s * self._time_constant_s)
        kept = min(1.0, most / self._ends)
        self._ends *= kept
        self._prompt_tokens *= kept
        self._output_tokens *= kept


class ModelState:
    """One model: its sequences in rows, its waiting requests, its measured load."""

    def __init__(
        self,
        spec: ModelSpec,
        kv: ModelCache,
        meter: LoadMeter,
        *,
        keeps_output: bool = True,
        most_tokens: int | None = None,
    ) -> None:
        """keeps_output: see RunningTable. most_tokens: of a job; None: prompts have all their
        blocks when they are admitted."""
        self.spec = spec
        self.kv = kv  # its part of the unit's KV cache
        self.name = spec.name
        self._adapters = frozenset(adapter.name for adapter in spec.adapters)
        self.places = AdapterPlaces(spec.adapter_places)  # of other adapters
        self.blocks_per_column = spec.shape.blocks_per_column
        self.block_tokens = kv.block_tokens  # in one block; a column has `blocks_per_column`
        # What a sequence needs at once, a block more as windows begin anywhere; None: all.
        self._ahead_tokens: int | None = None
        if most_tokens is not None and kv.slides:
            self._ahead_tokens = spec.window + most_tokens + kv.block_tokens
        self.running = RunningTable(
            spec.max_seqs, spec.max_model_len, num_more=spec.batch_seqs, keeps_output=keeps_output
        )
        self.waiting = Waiting()
        self.turns = TenantTurns()  # of the interactive requests that wait
        self.meter = meter
        self.arrivals = RecentArrivals()
        self.counters = Counters()
        self.peak_blocks = 0  # highest use since the last quota adaptation
        self.is_short = False  # blocks were refused since then
        self.scaling: BatchScaling | None = None  # of its padded batches
        if spec.padded is not None:
            limit = spec.padded
            self.scaling = BatchScaling(limit.row_bytes, limit.limit_bytes, spec.num_rows)

    @property
    def table_bytes(self) -> int:
        """Bytes of its tables in this process, the same however many requests it has."""
        return self.kv.table_bytes + array_bytes(self.running)

    @property
    def num_live(self) -> int:
        """Number of accepted requests that have not ended."""
        return self.running.num_live + len(self.waiting)

    def held(self, now: float) -> Held:
        """Return what its interactive requests with a row have had so far."""
        table = self.running
        rows = (table.is_live & ~table.is_batch).nonzero()[0]
        seconds = sum(table.at(row).account.held_s(now) for row in rows.tolist())
        output = table.num_tokens[rows] - table.num_prompt[rows]
        return Held(seconds, int(output.sum()))

    @property
    def has_batch_work(self) -> bool:
        """True where a request of the batch class has not ended."""
        return (
            self.running.num_batch > 0 or self.waiting.by_class[ServiceClass.BATCH].head is not None
        )

    @property
    def has_interactive(self) -> bool:
        """True where an interactive request has not ended."""
        return self.waiting.num_interactive > 0 or self.running.num_live > self.running.num_batch

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
        """Return the columns of a sequence of so many tokens, those of its states among them."""
        if num_tokens <= 0:
            return 0
        return self.spec.state_columns + -(-num_tokens // self.block_tokens)

    def blocks(self, num_tokens: int) -> int:
        """Return the blocks that hold `num_tokens` tokens of one sequence."""
        return self.columns(num_tokens) * self.blocks_per_column

    def first_tokens(self, num_tokens: int, num_cached: int) -> int:
        """Return for how many tokens a sequence with so many known has blocks when it is admitted.

        All, but where it may slide: for the most that a job computes and what these see, after
        `num_cached` tokens that were attached.
        """
        if self._ahead_tokens is None:
            return num_tokens
        return min(num_tokens, num_cached + self._ahead_tokens)

    def slides(self, rows: TableRows) -> NDArray[np.bool_]:
        """Return which of `rows` have prompt left for which they have no blocks yet, bool [n]."""
        table = self.running
        if self._ahead_tokens is None or not table.num_prefilling:
            return np.zeros(len(rows), dtype=np.bool_)
        lacks: NDArray[np.bool_] = self.kv.capacity[rows] < table.num_tokens[rows]
        return lacks & table.is_prefilling[rows]

    def most_blocks(self, num_tokens: int) -> int:
        """Return the most blocks that a sequence ever holds that ends with so many tokens."""
        if self._ahead_tokens is None:
            return self.blocks(num_tokens)
        # A window that was attached, and what it has for itself.
        most = self.columns(self.spec.window) + 1 + self.columns(self._ahead_tokens)
        return min(self.columns(num_tokens), most) * self.blocks_per_column

    def max_total(self, request: Request) -> int:
        """Return the prompt and output tokens at which `request` ends with `length`.

        A prompt that fills the context still gets one token: the last token is never computed.
        """
        num_prompt = len(request.prompt_tokens)
        longest = max(self.spec.max_model_len, num_prompt + 1)
        return min(num_prompt + request.sampling.max_tokens, longest)

    def take_turn(self, live: LiveRequest) -> None:
        """Give a request its place among those of other tenants; batches keep their own order."""
        request = live.request
        if request.service_class is ServiceClass.BATCH:
            return
        num_output = min(request.sampling.max_tokens, round(self.meter.mean_output_tokens))
        live.expected_tokens = live.num_prompt + max(1, num_output)
        live.wait_in_turn(self.turns.begin(request.tenant, live.expected_tokens))

    def admit_turn(self, live: LiveRequest) -> None:
        """Note that a request left the queue for a row."""
        if live.waits_in_turn:
            live.waits_in_turn = False
            self.turns.admit(live.request.tenant, live.start, live.expected_tokens)
        self._rest()

    def end_turn(self, live: LiveRequest) -> None:
        """Count what a request took that has ended, and left the queue or its row."""
        if live.waits_in_turn:
            self.turns.withdraw(live.request.tenant, live.start)
        elif live.expected_tokens:
            self.turns.correct(live.request.tenant, live.num_tokens - live.expected_tokens)
        self._rest()

    def _rest(self) -> None:
        if not self.waiting.num_interactive:
            self.turns.clear()

    def uses_prefixes(self, live: LiveRequest) -> bool:
        """True where `live` may take from and give to the prefix cache."""
        return self.spec.prefix_caching and live.request.cacheable

    def refusal(self, request: Request, carry_blocks: int) -> Rejected | None:
        """Return why `request` can never end here, or None.

        carry_blocks: blocks that one sequence of the model can always get: its quota floor, or the
        pool where no quotas are in force. Prompt and max_tokens must fit into them together, or the
        request could be preempted for ever.
        """
        if request.adapter_path and not self.spec.adapter_places:
            message = f"{self.name} takes no adapters while it runs (models[].adapter_places)"
            return Rejected(request.request_id, "model_not_found", message)
        if request.adapter and not request.adapter_path and request.adapter not in self._adapters:
            message = f"no adapter {request.adapter!r} here"
            return Rejected(request.request_id, "model_not_found", message)
        num_prompt = len(request.prompt_tokens)
        if num_prompt == 0:
            return Rejected(request.request_id, "invalid_value", "the prompt has no tokens")
        if num_prompt > self.spec.max_model_len:
            message = f"{num_prompt} prompt tokens exceed the context of {self.spec.max_model_len}"
            return Rejected(request.request_id, "context_length_exceeded", message)
        # The last token is never computed and needs no block.
        needed = self.most_blocks(max(num_prompt, self.max_total(request) - 1))
        if needed > carry_blocks:
            columns = carry_blocks // self.blocks_per_column - self.spec.state_columns
            tokens = max(0, columns) * self.block_tokens
            message = (
                f"prompt and max_tokens exceed the {tokens} tokens that memory has for one request"
            )
            return Rejected(request.request_id, "context_length_exceeded", message)
        return None

    @property
    def _backend(self) -> str:
        """As `ModelStats.backend`."""
        return f"{self.spec.backend}{', states' if self.spec.state_columns else ''}"

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
            num_constrained=counters.num_constrained,
            mask_wait_s=counters.mask_wait_s,
            num_forced=counters.num_forced,
            num_drafts=counters.num_drafts,
            num_draft_tokens=counters.num_draft_tokens,
            num_accepted_tokens=counters.num_accepted_tokens,
            batch_blocks=self.kv.batch_used,
            num_lent=self.running.num_lent,
            waiting_tokens=self.waiting.num_tokens + self.running.num_uncomputed,
            padded_usage=0.0 if self.scaling is None else self.scaling.usage,
            backend=self._backend,
            step_time_error=step_time_error,
        )

    def check(self, jobs: Sequence[Job]) -> None:
        """Raise AssertionError where rows, running `jobs` and blocks contradict each other."""
        table = self.running
        is_lent = self.kv.num_lent > 0
        assert (table.is_lent == is_lent).all(), "lent sequences are forgotten"
        table.check()
        self.places.check((table.is_live | table.is_written).nonzero()[0].tolist())
        self.turns.check(Counter(e.request.tenant for e in self.waiting if e.waits_in_turn))
        in_jobs = sum(len(job.rows) for job in jobs if job.model == self.name)
        assert in_jobs == table.in_job.sum(), "a sequence is in two jobs or a lost one"
        full = self.kv.capacity < table.num_computed
        assert not (full & table.is_live).any(), "a computed token has no block"
