"""A job that is being put together: what a packing decides, and how long it would take."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import DraftTokens, Job, Phase, SlotCopies, TableDelta
from muxcluster.scheduling.memory.admission import Memory
from muxcluster.scheduling.memory.lending import Restored
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.state.running import TableRows
from muxcluster.scheduling.steptime.line import JobWork, decode_contexts, decode_work
from muxcluster.scheduling.steptime.model import JobTimes, StepTimes


@dataclass(slots=True, eq=False)
class Batch:
    """Rows of one model."""

    rows: NDArray[np.int32]  # int32 [n], rows of the model's tables
    counts: NDArray[np.int32]  # int32 [n], tokens of each that are processed
    grown: TableDelta | None = None  # new table entries of rows that ran before
    # Rows whose sequences are sent to the workers whole: they took the row just now, or their
    # last job failed.
    admitted: Sequence[int] = field(default=())
    max_steps: int = 1  # decode steps
    # Saves what the rows overwrite, and restores rows; None: nobody has looked.
    copies: tuple[SlotCopies, ...] | None = None
    drafts: DraftTokens | None = None  # the last of `counts`; None: there are none

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(slots=True)
class Limits:
    """Bounds of one job; see SchedulerSpec."""

    token_budget: int  # of a prefill or mixed job
    max_decode_rows: int
    max_steps: int  # of a decode job; may change between two jobs
    ageing_s: float = 30.0
    first_rows: int = 16
    more_rows: int = 4

    def most_tokens(self, phase: Phase) -> int:
        """Return the most tokens of a job; a decode job may have more rows than the budget."""
        most = self.token_budget
        return max(most, self.max_decode_rows) if phase is Phase.DECODE else most


class Turn(NamedTuple):
    """When and where a job would start."""

    now: float  # seconds
    share: float  # of the SMs
    job_id: int  # that it would have
    num_beside: int = 0  # jobs that run now


class Packing(Protocol):
    """Chooses the sequences of a job; an empty batch means that nothing can run now."""

    is_class_blind: bool  # seniority goes by arrival alone, whatever class and priority
    by_deadline: bool  # interactive requests wait in the order of their deadlines
    may_lend: bool  # batch sequences may lend their blocks, see memory/lending.py
    repeats: bool  # while nothing else happens a decode job has the rows of the last one
    predicts: bool  # it uses step times

    def __init__(self, memory: Memory, limits: Limits, times: StepTimes) -> None: ...

    def may_prefill(self, model: ModelState) -> bool:
        """Return True where a prefill job would find rows; nothing changes."""
        ...

    def observe(self, job: Job, seconds: float, num_beside: int) -> None:
        """Learn from `job`, which ran for so long beside as many others."""
        ...

    def decodes_all(self, model: ModelState) -> bool:
        """Return True where a decode job has every sequence that could decode, up to its limits."""
        ...

    def pack(self, model: ModelState, phase: Phase, turn: Turn) -> Batch:
        """Return the rows of a job of `phase`; their memory is taken.

        Prefill: prompt chunks, and waiting requests as memory allows. Decode: sequences that decode
        one token (or `max_steps`); may preempt. Mixed: decodes first, prompt chunks in what is left
        of the token budget.
        """
        ...


class Draft:
    """Rows of one model at one SM share."""

    def __init__(self, model: ModelState, times: JobTimes) -> None:
        self.model = model
        self.num_rows = self.num_batch = 0  # rows so far, and those of the batch class
        self.work = JobWork()
        self.image_tokens = 0  # of images whose first tokens are in its chunks
        # Row and number of tokens of each chunk, of either class
        self.prompts: list[tuple[int, int]] = []
        self._longest = 0
        self._times = times
        self._rows: list[TableRows] = []
        self._counts: list[TableRows] = []
        self._admitted: list[int] = []
        self._tables: list[TableDelta] = []
        self._copies: list[SlotCopies] = []

    def __len__(self) -> int:
        return self.num_rows

    @property
    def num_decodes(self) -> int:
        """Tokens of rows that decode: one of each, and forced ones."""
        return int(self.work.num_rows)

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt chunks."""
        return int(self.work.num_tokens)

    @property
    def num_interactive(self) -> int:
        """Rows of the interactive class."""
        return self.num_rows - self.num_batch

    @property
    def seconds(self) -> float:
        """Predicted time of the job as it is; 0 where nothing is known yet."""
        if not self.num_rows:
            return 0.0
        return self._times.job_s(self.work) + self._image_s

    @property
    def _image_s(self) -> float:
        return self._times.image_s(self.image_tokens) if self.image_tokens else 0.0

    @property
    def least_s(self) -> float:
        """Predicted time of a job of one token, of a row that decodes or of a prompt."""
        return max(self._times.decode_s(1, 1), self._times.prefill_s(1, 1))

    @property
    def seconds_of_decodes(self) -> float:
        """Predicted time of the rows that decode, without prompts."""
        rows = self.work.num_rows
        return self._times.decode_s(rows, self.work.context) if rows else 0.0

    def seconds_with(self, num_decodes: int, context: int) -> float:
        """Predicted time with so many more rows that decode."""
        return self._times.job_s(self.work.with_rows(num_decodes, context)) + self._image_s

    def rows_within(self, seconds: float, rows: TableRows) -> int:
        """How many of `rows`, in order, may decode in the job too."""
        if seconds == np.inf or len(rows) == 0:
            return len(rows)
        table = self.model.running
        if not table.has_runs:
            return self._times.rows_within(seconds, self.work, table.num_tokens[rows])
        counts = table.uncomputed(rows)
        contexts = decode_contexts(table.num_computed[rows], counts)
        return self._times.rows_within(seconds, self.work, contexts, counts)

    def fitting(self, rows: TableRows) -> TableRows:
        """Those of `rows`, from the first on, that a padded batch has memory for too."""
        return self.model.fitting(rows, num_rows=self.num_decodes, longest=self._longest)

    def tokens_within(self, seconds: float, start: int, limit: int) -> int:
        """How many tokens of a prompt computed up to `start` make the job no longer than that."""
        if seconds == np.inf:
            return limit
        return self._times.prompt_tokens_within(seconds, self.work, start, limit)

    def decode(
        self,
        rows: TableRows,
        grown: TableDelta | None,
        *,
        is_batch: bool,
        is_admitted: bool = False,
    ) -> None:
        """Add rows of one class that decode a token, and compute the forced ones before it.

        grown: their new table entries; is_admitted: see Batch.
        """
        if len(rows) == 0:
            return
        if is_admitted:
            self._admitted += rows.tolist()
        num_batch = len(rows) if is_batch else 0
        counts = self.model.running.uncomputed(rows)
        self._add(rows, counts, num_batch)
        if grown is not None and len(grown):
            self._tables.append(grown)
        lengths = self.model.running.num_computed[rows]
        num_tokens, context = decode_work(lengths, counts)
        if self.model.scaling is not None:
            self._longest = max(self._longest, int(lengths.max()))
        self.work = self.work.with_rows(num_tokens, context)

    def chunk(self, row: int, count: int, *, is_admitted: bool = False) -> None:
        """Add the next `count` tokens of a prompt. is_admitted: it took its row just now."""
        one, counts = np.array([row], dtype=np.int32), np.array([count], dtype=np.int32)
        self._add(one, counts, int(self.model.running.is_batch[row]))
        if is_admitted:
            self._admitted.append(row)
        self.prompts.append((row, count))
        start = int(self.model.running.num_computed[row])
        self.work = self.work.with_prompt(start, count)
        for image in self.model.running.at(row).request.images:
            if start <= image.start < start + count:
                self.image_tokens += image.num_tokens

    def save(self, memory: Memory, job_id: int) -> None:
        """What the rows so far overwrite is saved. Call it before others are restored."""
        if self._rows and memory.may_overwrite(self.model):
            rows, counts = _joined(self._rows), _joined(self._counts)
            self._copies += memory.saves(self.model, rows, counts, job_id)

    def restore(self, restored: Restored) -> None:
        """Some rows' blocks are restored with this job; the rows must be added, too."""
        tables, copies = restored
        self._tables.append(tables)
        self._copies += copies

    def copy(self, copies: tuple[SlotCopies, ...]) -> None:
        """The job makes these copies, too."""
        self._copies += copies

    def _add(self, rows: TableRows, counts: TableRows, num_batch: int) -> None:
        self._rows.append(rows)
        self._counts.append(counts)
        self.num_rows += len(rows)
        self.num_batch += num_batch

    def batch(self) -> Batch:
        """The rows, for the job builder."""
        if not self._rows:
            nothing = np.empty(0, dtype=np.int32)
            return Batch(nothing, nothing, copies=())
        return Batch(
            rows=_joined(self._rows),
            counts=_joined(self._counts),
            grown=merged_tables(self._tables),
            admitted=self._admitted,
            copies=tuple(self._copies),
        )


def _joined(parts: list[TableRows]) -> TableRows:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def merged_tables(deltas: list[TableDelta]) -> TableDelta | None:
    if len(deltas) < 2:
        return deltas[0] if deltas else None
    return TableDelta(
        np.concatenate([delta.rows for delta in deltas]),
        np.concatenate([delta.columns for delta in deltas]),
        np.concatenate([delta.blocks for delta in deltas]),
    )
