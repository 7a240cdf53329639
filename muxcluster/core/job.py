"""One model's batch on one SM share: what the scheduler orders and a worker executes."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

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
    """Which rows of a job read the same blocks first, arrays of length [rows].

    leaders: int32, a slot whose table stands for the row's prefix: the rows of a leader are a
        group. tokens: int32, length of that prefix, whole blocks of which all tokens are computed
        and that every token of the row sees; 0 for a row that shares nothing.
    """

    leaders: NDArray[np.int32]
    tokens: NDArray[np.int32]

    def of(self, rows: slice | NDArray[np.integer]) -> "SharedPrefixes":
        """Those of some of the rows."""
        return SharedPrefixes(self.leaders[rows], self.tokens[rows])

    @property
    def num_saved(self) -> int:
        """Tokens that a step reads less often because each group reads its prefix once."""
        _, firsts = np.unique(self.leaders, return_index=True)
        return int(self.tokens.sum() - self.tokens[firsts].sum())


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The sequences of a job, one entry a row, all arrays of length [rows].

    slots: int32, the sequence's slot in its model's tables.
    starts: int32, position of the first token processed; counts: int32 ≥ 1, tokens processed.
        The tokens are history[slot, start : start + count] (worker-side shared memory).
    samples: bool, True where the row's last token yields an output token (written to
        history[slot, start + count]); False for a prefill chunk that does not end its prompt.
    prefixes: what rows share, None where they share nothing.
    """

    slots: NDArray[np.int32]
    starts: NDArray[np.int32]
    counts: NDArray[np.int32]
    samples: NDArray[np.bool_]
    prefixes: SharedPrefixes | None = None

    def __len__(self) -> int:
        return len(self.slots)


@dataclass(frozen=True, slots=True, eq=False)
class TableDelta:
    """New block-table entries: table[slots[i], :, :, columns[i]] = blocks[i].

    slots, columns: int32 [n]; blocks: int32 [n, num_layers * num_kv_heads], layer-major.
    """

    slots: NDArray[np.int32]
    columns: NDArray[np.int32]
    blocks: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.slots)


@dataclass(frozen=True, slots=True, eq=False)
class Admission:
    """A sequence that takes a slot with this job; sent before its first row and after recompute.

    tokens: int32 [n], prompt then output so far; the worker writes them to history[slot, :n].
    """

    slot: int
    request_id: str
    tokens: NDArray[np.int32]
    num_prompt_tokens: int
    sampling: SamplingParams
    side: Side = Side.LEFT


@dataclass(frozen=True, slots=True, eq=False)
class SlotCopies:
    """Copies of one model's token slots that a job makes before its forward (BROS §5).

    Each int64 [n, 3]: first slot of the source, first slot of the destination, number of slots.
    Slots are physical, block * block_tokens + place; host memory has blocks as the pool has.
    saves: pool to host memory, what the job is about to overwrite. moves: pool to pool. restores:
        host memory to pool. A job makes all its saves before any move or restore.
    """

    model: str
    saves: NDArray[np.int64]
    moves: NDArray[np.int64]
    restores: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A batch to run. Frozen: the worker answers with a `JobResult` of the same job_id.

    share: SM share in (0, 1], one of the worker's rungs.
    max_steps: decode steps in this one launch (≥ 1; 1 for prefill and mixed). Blocks for all of
        them are in `tables`.
    copies: one entry a model whose slots are copied; it may be another than the job's.
    follows: the job of the same worker, share and rows (but for those known to end with it) that
        this one goes on from. It is sent while that one runs, so some of its rows may have ended
        meanwhile: what they come to is of no use. Where that job failed, this one must not run.
    """

    job_id: int
    model: str
    phase: Phase
    worker_id: int
    share: float
    rows: Rows
    tables: TableDelta
    admissions: tuple[Admission, ...] = ()
    max_steps: int = 1
    copies: tuple[SlotCopies, ...] = ()
    follows: int | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, from the distribution before penalties and truncation.

    token, logprob: the token at this position. rank: 1 for the most likely.
    top_tokens, top_logprobs: the most likely alternatives, best first.
    """

    token: int
    logprob: float
    rank: int
    top_tokens: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class JobResult:
    """What a job produced.

    tokens: int32 [sum(counts)], output tokens row after row; counts: int32 [rows], 0 for a row
        that did not sample.
    logprobs: row -> one entry per output token, only for rows that asked.
    prompt_logprobs: row -> one entry per prompt position whose *successor* lies in the prompt:
        the entry from position p describes the prompt token at p + 1.
    seconds: execution time on the worker.
    padded: the batch that its decoding rows are in; None where the model pads none.
    broken_rows: rows whose logits were not finite in some step, so their tokens are noise.
    """

    job_id: int
    tokens: NDArray[np.int32]
    counts: NDArray[np.int32]
    seconds: float
    logprobs: Mapping[int, tuple[TokenLogprobs, ...]]
    prompt_logprobs: Mapping[int, tuple[TokenLogprobs, ...]]
    padded: PaddedBatch | None = None
    broken_rows: tuple[int, ...] = ()
