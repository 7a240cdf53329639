"""What a packing decides: the rows of one job, their memory already taken."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import Job, Phase, SlotCopies, TableDelta
from muxcluster.scheduling.memory.admission import Memory
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.steptime.model import StepTimes


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

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(slots=True)
class Limits:
    """Bounds of one job; see SchedulerSpec."""

    token_budget: int  # of a prefill or mixed job
    max_decode_rows: int
    max_steps: int  # of a decode job; may change between two jobs
    batch_stretch: float = 2.0
    ageing_s: float = 30.0
    first_rows: int = 16
    more_rows: int = 4


class Turn(NamedTuple):
    """When and where a job would start."""

    now: float  # seconds
    share: float  # of the SMs
    job_id: int  # that it would have


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

    def backlog(self, models: Sequence[ModelState]) -> float:
        """Return how many full prefill jobs wait of models that lack no blocks."""
        ...

    def pool_use(self) -> float:
        """Return the share of the pool's blocks that live sequences hold."""
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
