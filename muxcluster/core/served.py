"""What layers above the engine know of a unit: its models, its state and its finished jobs."""

from dataclasses import dataclass
from enum import StrEnum

from muxcluster.core.inputs.adapters.load import LoadedAdapter
from muxcluster.core.inputs.carried import Carried
from muxcluster.core.request import Slo


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """What an embedding model answers with."""

    size: int  # numbers of a vector
    pooling: str = "lasttoken"  # as `ModelSpec.pooling`
    is_normalised: bool = True  # vectors have length 1
    # Shorter vectors that keep their meaning, their first numbers, as the model was trained so
    # (Matryoshka, Kusupati et al. 2022)
    has_any_dimensions: bool = False  # every smaller number
    dimensions: tuple[int, ...] = ()  # or these

    def allows(self, dimensions: int) -> bool:
        """Return whether vectors may be cut to so many numbers."""
        if dimensions == self.size:
            return True
        is_cut = 0 < dimensions < self.size
        return is_cut and (self.has_any_dimensions or dimensions in self.dimensions)


@dataclass(frozen=True, slots=True)
class ScoreOutput:
    """What a cross-encoder answers with: a number for two texts that it reads at once."""

    is_sigmoid: bool = True  # scores are the sigmoid of what the model computes, 0 to 1


@dataclass(frozen=True, slots=True)
class ServedModel(Carried):
    """One entry of `/v1/models` and what the edge validates requests against."""

    name: str
    path: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    slo: Slo | None = None
    tool_format: str = "auto"  # `models[].tool_format` of the file
    reasoning: str = "auto"  # `models[].reasoning` of the file
    # embedding, scoring: None for both: it generates
    embedding: EmbeddingOutput | None = None
    scoring: ScoreOutput | None = None
    base: str = ""  # of an adapter: the model whose weights it changes; else empty
    # Of an adapter that was loaded while its base ran; None: the configuration has it
    loaded: LoadedAdapter | None = None
    takes_images: bool = False  # in messages of chats

    @property
    def unit_model(self) -> str:
        """Name of the model in units, whose jobs its requests are in."""
        return self.base or self.name

    @property
    def unit_adapter(self) -> str:
        """What units call the adapter; empty for a model of its own."""
        if self.loaded is not None:
            return self.loaded.unit_id(self.name)
        return self.name if self.base else ""


@dataclass(frozen=True, slots=True)
class ModelStats:
    """A model's state in one unit at one moment; counters never decrease."""

    name: str
    num_running: int = 0
    num_waiting: int = 0
    quota_blocks: int = 0
    used_blocks: int = 0
    cached_blocks: int = 0
    rate_per_s: float = 0.0
    prefix_queries: int = 0  # Prompt tokens looked up in the prefix cache
    prefix_hits: int = 0  # Prompt tokens found there
    num_preemptions: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    # Columns that its batch requests lent to interactive ones
    num_lent_columns: int = 0
    # Token slots (of one layer and KV head) of these, copied to host memory before overwriting
    num_saved_slots: int = 0
    num_restored_slots: int = 0  # token slots copied back
    # Tokens whose KV was computed again after a preemption or a failed job.
    num_recomputed_tokens: int = 0
    # Blocks that batch requests hold outside the quota, not in `used_blocks` (packing "hybrid")
    batch_blocks: int = 0
    # Batch requests that lent blocks and wait to be restored; part of `num_running`
    num_lent: int = 0
    waiting_tokens: int = 0  # to compute until each request here has its first output token
    # Tokens whose KV was not read again by decode steps because a group of rows read it once (in
    # layers with full attention)
    num_shared_reads: int = 0
    # Mean of |predicted / actual - 1| over the last jobs; 0 if nothing is predicted.
    step_time_error: float = 0.0
    # Memory of the last padded batch over its limit; 0 without padded batches
    padded_usage: float = 0.0
    # Requests that ended because the model computed NaN or infinite logits for them.
    num_non_finite: int = 0
    num_constrained: int = 0  # requests with a constraint that came
    mask_wait_s: float = 0.0  # of jobs, for what constraints allow
    num_forced: int = 0  # output tokens without a step of their own: constraints left no choice
    num_drafts: int = 0  # times that a row had draft tokens in a job
    num_draft_tokens: int = 0  # of all these times
    num_accepted_tokens: int = 0  # draft tokens that became output
    # "paged", "paged, states" (which has no prefix cache), "dense" or "encoder"; "auto" until the
    # model is loaded
    backend: str = "paged"
    # False while `rate_per_s` is the plan's, because no request has come
    is_rate_measured: bool = False
    weights: str = "resident"  # where they are: a `WeightState`
    # num_wakes, num_parks: since the unit started
    num_wakes: int = 0
    num_parks: int = 0
    waking_s: float = 0.0  # of all wakes
    # Of the wakes, those that nothing waited for, and after how many of them a request came in time
    num_wakes_ahead: int = 0
    num_wakes_ahead_used: int = 0
    resident_bytes: int = 0  # that it takes of a rank's memory while it is resident; 0: not counted
    # That the unit keeps for it in host memory while it is parked, cached blocks and the kernel's
    # page cache not counted; 0: not counted
    parked_bytes: int = 0
    # Predicted seconds until a request that waits for its weights could run; 0 if resident
    expected_wait_s: float = 0.0
    # Expected delay that its wake would cause for other models' requests, in seconds of all of them
    wake_cost_s: float = 0.0
    order: str = ""  # an operator's `WeightOrder` that holds; empty: none


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One finished job on the unit's clock, for timelines and metrics."""

    job_id: int
    model: str
    phase: str
    worker_id: int
    share: float
    start_s: float
    end_s: float
    num_rows: int
    num_tokens: int


class UnitState(StrEnum):
    """Whether a unit can run requests."""

    READY = "ready"
    RECOVERING = "recovering"  # processes restart and requests wait
    FAILED = "failed"  # a new unit must replace it


@dataclass(frozen=True, slots=True)
class SharingStats:
    """Whether jobs of a unit run side by side on parts of the SMs, and what that gained."""

    is_on: bool
    # gain, mixed_gain: seconds of the jobs alone, one after another, over their seconds side by
    # side, or as mixed jobs (predicted for the same jobs while sharing is on); 1 until measured
    gain: float = 1.0
    mixed_gain: float = 1.0


@dataclass(frozen=True, slots=True)
class UnitStats:
    """A unit's state at one moment (`now_s` on the unit's clock)."""

    unit_id: str
    now_s: float
    num_blocks: int
    free_blocks: int
    models: tuple[ModelStats, ...] = ()
    jobs: tuple[JobRecord, ...] = ()  # Jobs finished since the previous stats
    state: UnitState = UnitState.READY
    sharing: SharingStats | None = None  # None if the unit always shares, or cannot
