"""What a packing decides: the rows of one job, their memory already taken."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import Job, SlotCopies, TableDelta
from muxcluster.scheduling.memory.admission import Memory
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.steptime.model import StepTimes


@dataclass(slots=True, eq=False)
class Batch:
    """Rows of one model.

    slots, counts: int32 [rows], sequences and how many tokens of each are processed.
    grown: new table entries of rows that ran before. admitted: slots whose sequences the workers
    must be told whole, because they took the slot just now or their last job failed. max_steps:
    decode steps. copies: what rows overwrite is saved, and rows are restored; None: not looked at.
    """

    slots: NDArray[np.int32]
    counts: NDArray[np.int32]
    grown: TableDelta | None = None
    admitted: Sequence[int] = field(default=())
    max_steps: int = 1
    copies: tuple[SlotCopies, ...] | None = None

    def __len__(self) -> int:
        return len(self.slots)


@dataclass(slots=True)
class Limits:
    """Bounds of one job: tokens of a prefill or mixed job, rows and steps of a decode job.

    max_steps may change between two jobs. The rest: see SchedulerSpec.
    """

    token_budget: int
    max_decode_rows: int
    max_steps: int
    batch_stretch: float = 2.0
    ageing_s: float = 30.0
    first_rows: int = 16
    more_rows: int = 4


class Turn(NamedTuple):
    """When and where a job would start: seconds, its SM share, the number it would have."""

    now: float
    share: float
    job_id: int


class Packing(Protocol):
    """Chooses who is in a job. An empty batch means "nothing can run now".

    A suspect (see isolation.py) is the only row of its jobs and is not kept waiting by others.
    is_class_blind: its requests are senior by arrival alone, whatever their class and priority.
    by_deadline: interactive requests wait in the order of their deadlines. may_lend: batch
    sequences may lend their blocks, see lending.py. repeats: where nothing else happens a decode
    job has the rows of the last one, see repeating.py. predicts: it asks for step times.
    """

    is_class_blind: bool
    by_deadline: bool
    may_lend: bool
    repeats: bool
    predicts: bool

    def __init__(self, memory: Memory, limits: Limits, times: StepTimes) -> None: ...

    def may_prefill(self, model: ModelState) -> bool:
        """True where `prefill` would find rows; nothing changes."""
        ...

    def backlog(self, models: Sequence[ModelState]) -> float:
        """How many full prefill jobs wait of models that lack no blocks."""
        ...

    def pool_use(self) -> float:
        """Share of the pool's blocks that live sequences hold."""
        ...

    def observe(self, job: Job, seconds: float, num_beside: int) -> None:
        """`job` ran for so long, beside as many others."""
        ...

    def decodes_all(self, model: ModelState) -> bool:
        """True where a job of the model has every sequence that could decode, memory and
        `max_decode_rows` permitting.
        """
        ...

    def prefill(self, model: ModelState, turn: Turn) -> Batch:
        """Prompt chunks: admits waiting requests as memory allows."""
        ...

    def decode(self, model: ModelState, turn: Turn) -> Batch:
        """Sequences that decode one token (or `max_steps`); may preempt."""
        ...

    def mixed(self, model: ModelState, turn: Turn) -> Batch:
        """Decodes first, prompt chunks in what is left of the token budget."""
        ...
