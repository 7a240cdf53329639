"""Jobs: one model's batch on one SM share, planned by the scheduler and run by a worker."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.inputs.images.prompt_image import PromptImage
from muxcluster.core.padded import PaddedBatch
from muxcluster.core.sampling import SamplingParams


class Phase(StrEnum):
    """What the rows of a job do; `mixed` holds prefill chunks and decodes in one forward."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


class Side(StrEnum):
    """End of a block a sequence fills from (BROS §5): interactive left, batch right."""

    LEFT = "left"
    RIGHT = "right"


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker of a unit: runs one job at a time, at one of a few SM shares."""

    worker_id: int
    shares: tuple[float, ...]  # the SM shares it can run at, ascending, each in (0, 1]
    phases: frozenset[Phase] = frozenset(Phase)  # what it may run


@dataclass(frozen=True, slots=True, eq=False)
class SharedPrefixes:
    """Which rows of a job read the same blocks first, arrays of length [rows]."""

    # int32, a table row whose blocks stand for the row's prefix: the rows of a leader are a group
    leaders: NDArray[np.int32]
    # int32, length of that prefix in tokens: whole, computed blocks that every token of the row
    # attends to; 0 for a row that shares nothing
    tokens: NDArray[np.int32]

    def of(self, rows: slice | NDArray[np.integer]) -> "SharedPrefixes":
        """Return the entries of some rows."""
        return SharedPrefixes(self.leaders[rows], self.tokens[rows])

    @property
    def num_saved(self) -> int:
        """Tokens that a step reads less often because each group reads its prefix once."""
        _, firsts = np.unique(self.leaders, return_index=True)
        return int(self.tokens.sum() - self.tokens[firsts].sum())


@dataclass(frozen=True, slots=True, eq=False)
class DraftTokens:
    """Tokens that a job's rows are expected to sample, and that it checks.

    A row's drafts are the last tokens that it processes. It samples a token behind each of them,
    too, and yields these up to the first that differs from its draft.
    """

    counts: NDArray[np.int32]  # int32 [rows], drafts of each row, fewer than it processes tokens
    tokens: NDArray[np.int32]  # int32 [sum(counts)], row after row

    def of(self, rows: slice | NDArray[np.integer] | NDArray[np.bool_]) -> "DraftTokens":
        """Return the drafts of some rows."""
        counts, firsts = self.counts[rows], (self.counts.cumsum() - self.counts)[rows]
        places = np.arange(int(counts.sum())) + (firsts - counts.cumsum() + counts).repeat(counts)
        return DraftTokens(counts, self.tokens[places])


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The sequences of a job, one entry a row, all arrays of length [rows]."""

    table_rows: NDArray[np.int32]  # int32, the sequence's row in its model's tables
    starts: NDArray[np.int32]  # int32, position of the first token processed
    # int32 ≥ 1, tokens processed: history[table_row, start : start + count] (shared memory), where
    # the worker writes the drafts among them first
    counts: NDArray[np.int32]
    # Bool, True if the row's last token yields an output token (written to
    # history[table_row, start + count]); False for a prefill chunk that does not end its prompt
    samples: NDArray[np.bool_]
    prefixes: SharedPrefixes | None = None  # None if no rows share a prefix
    drafts: DraftTokens | None = None  # None if no row has any

    def __len__(self) -> int:
        return len(self.table_rows)

    @property
    def ends(self) -> NDArray[np.int32]:
        """Position behind the last token of each row that is no draft, int32 [rows]."""
        ends: NDArray[np.int32] = self.starts + self.counts
        return ends if self.drafts is None else ends - self.drafts.counts


@dataclass(frozen=True, slots=True, eq=False)
class TableDelta:
    """New block-table entries: table[rows[i], :, :, columns[i]] = blocks[i].

    Columns of states come first (`ModelSpec.state_columns`), then those of tokens.
    """

    rows: NDArray[np.int32]  # rows, columns: int32 [n]
    columns: NDArray[np.int32]
    blocks: NDArray[np.int32]  # int32 [n, num_layers * num_kv_heads], layer-major

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True, eq=False)
class Admission:
    """A sequence that gets a row with this job, before its first row or before a recompute."""

    row: int
    request_id: str
    # int32 [n], prompt then output so far; the worker writes them to history[row, :n]
    tokens: NDArray[np.int32]
    num_prompt_tokens: int
    sampling: SamplingParams
    side: Side = Side.LEFT
    adapter: str = ""  # as `Request.adapter`
    # adapter_path, adapter_place: of an adapter that came while the unit ran: as `Request`, and
    # which of `ModelSpec.adapter_places` it has for as long as the row has this sequence
    adapter_path: str = ""
    adapter_place: int = 0
    images: tuple[PromptImage, ...] = ()  # of the prompt


@dataclass(frozen=True, slots=True, eq=False)
class SlotCopies:
    """Copies of one model's token slots that a job makes before its forward pass (BROS §5).

    Each int64 [n, 3]: first slot of the source, first slot of the destination, number of slots.
    Slots are physical, block * block_tokens + place; host memory has blocks as the pool has.
    """

    model: str
    saves: NDArray[np.int64]  # pool to host memory, what the job is about to overwrite
    moves: NDArray[np.int64]  # pool to pool
    # Host memory to pool; a job makes all its saves before any move or restore
    restores: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A batch to run. Frozen: the worker answers with a `JobResult` of the same job_id."""

    job_id: int
    model: str
    phase: Phase
    worker_id: int
    share: float  # SM share in (0, 1], one of the worker's rungs
    rows: Rows
    tables: TableDelta
    admissions: tuple[Admission, ...] = ()
    # Decode steps in this one launch (≥ 1; 1 for prefill and mixed). Blocks for all of them are in
    # `tables`.
    max_steps: int = 1
    # One entry a model whose slots are copied; it may be another than the job's
    copies: tuple[SlotCopies, ...] = ()
    # The job that this one continues: same worker, share and rows (but for those known to end with
    # it). This one is sent while that one runs, so rows may end meanwhile; their results are
    # dropped. If that job fails, this one must not run.
    follows: int | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, from the distribution before penalties and truncation."""

    token: int  # token, logprob: the token at this position
    logprob: float
    rank: int  # 1 for the most likely
    # top_tokens, top_logprobs: the most likely alternatives, best first
    top_tokens: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class JobResult:
    """Result of a job."""

    job_id: int
    tokens: NDArray[np.int32]  # int32 [sum(counts)], output tokens row after row
    counts: NDArray[np.int32]  # int32 [rows], 0 for a row that did not sample
    seconds: float  # execution time on the worker
    # Row -> one entry per output token, only for rows that asked
    logprobs: Mapping[int, tuple[TokenLogprobs, ...]]
    # Row -> one entry per prompt position whose *successor* lies in the prompt: the entry from
    # position p describes the prompt token at p + 1
    prompt_logprobs: Mapping[int, tuple[TokenLogprobs, ...]]
    # The padded batch of its decoding rows; None if the model pads none
    padded: PaddedBatch | None = None
    # Rows whose logits were not finite in some step; their tokens are noise
    broken_rows: tuple[int, ...] = ()
    # Row -> why its constraint could not be followed; its tokens are noise
    refused_rows: Mapping[int, str] = field(default_factory=dict)
    mask_wait_s: float = 0.0  # part of `seconds`: waiting for what constraints allow
    # Row -> the last hidden state of its last token as bytes of float32, for rows of embedding
    # models that sampled
    vectors: Mapping[int, bytes] = field(default_factory=dict)
    # image_tokens: of images of its prompts that it embedded; image_s: part of `seconds`, for that
    image_tokens: int = 0
    image_s: float = 0.0
