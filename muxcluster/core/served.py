"""Static facts of a model that a unit serves, as the layers above the engine need them."""

from dataclasses import dataclass
from enum import StrEnum

from muxcluster.core.request import Slo


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One entry of `/v1/models` and what the edge validates requests against."""

    name: str
    path: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    slo: Slo | None = None


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
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    """Prompt tokens found there."""
    num_preemptions: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    num_lent_columns: int = 0
    """Columns that its batch requests gave up so that interactive ones could grow."""
    num_saved_slots: int = 0
    """Token slots (of one layer and KV head) of them copied to host memory before overwriting."""
    num_restored_slots: int = 0
    """Token slots copied back from there."""
    num_recomputed_tokens: int = 0
    """Tokens whose KV was computed again after a preemption or a failed job."""
    batch_blocks: int = 0
    """Blocks of batch requests that are not counted in `used_blocks`: what they hold beside every
    quota, with packing hybrid."""
    num_lent: int = 0
    """Batch requests that gave blocks up and wait to be restored; part of `num_running`."""
    waiting_tokens: int = 0
    """Tokens to compute before every request that is here now has its first."""
    num_shared_reads: int = 0
    """Tokens whose KV decode steps did not read again because a group of rows read it once (by
    layers that see all of a context)."""
    step_time_error: float = 0.0
    """Mean of |predicted / actual - 1| over the last jobs; 0 where nothing is predicted."""
    padded_usage: float = 0.0
    """Memory of the last padded batch, of what it may take; 0 without padded batches."""
    num_non_finite: int = 0
    """Requests that ended because the model computed NaN or infinite logits for them."""
    backend: str = "paged"
    """What runs it, "paged" or "dense"; "auto" as long as nothing is loaded."""
    is_rate_measured: bool = False
    """False as long as `rate_per_s` is the plan's, since no request has come."""


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
    """recovering: processes restart and requests wait. failed: a new unit must take its place."""

    READY = "ready"
    RECOVERING = "recovering"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SharingStats:
    """Whether jobs of a unit run side by side on parts of the SMs, and what that gained.

    gain, mixed_gain: seconds that jobs would have taken alone, one after another, over the seconds
    they took side by side, or as mixed jobs; 1 while not measured.
    """

    is_on: bool
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
    jobs: tuple[JobRecord, ...] = ()
    """Jobs finished since the previous stats."""
    state: UnitState = UnitState.READY
    sharing: SharingStats | None = None
    """None where the unit always shares, or cannot."""
