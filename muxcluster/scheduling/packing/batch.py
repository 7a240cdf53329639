"""What a packing decides: the rows of one job, their memory already taken."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import TableDelta
from muxcluster.scheduling.memory import Memory
from muxcluster.scheduling.modelstate import ModelState


@dataclass(slots=True, eq=False)
class Batch:
    """Rows of one model.

    slots, counts: int32 [rows], sequences and how many tokens of each are processed.
    grown: new table entries of rows that ran before. admitted: slots whose sequences the workers
    must be told whole, because they took the slot just now or their last job failed. max_steps:
    decode steps.
    """

    slots: NDArray[np.int32]
    counts: NDArray[np.int32]
    grown: TableDelta | None = None
    admitted: Sequence[int] = field(default=())
    max_steps: int = 1

    def __len__(self) -> int:
        return len(self.slots)


@dataclass(slots=True)
class Limits:
    """Bounds of one job: tokens of a prefill or mixed job, rows and steps of a decode job.

    max_steps may change between two jobs.
    """

    token_budget: int
    max_decode_rows: int
    max_steps: int


class Packing(Protocol):
    """Chooses who is in a job. An empty batch means "nothing can run now".

    A suspect (see isolation.py) is the only row of its jobs and is not kept waiting by others.
    is_class_blind: its requests are senior by arrival alone, whatever their class and priority.
    """

    is_class_blind: bool

    def __init__(self, memory: Memory, limits: Limits) -> None: ...

    def may_prefill(self, model: ModelState) -> bool:
        """True where `prefill` would find rows; nothing changes."""
        ...

    def backlog(self, models: Sequence[ModelState]) -> float:
        """How many full prefill jobs wait of models that lack no blocks."""
        ...

    def pool_use(self) -> float:
        """Share of the pool's blocks that live sequences hold."""
        ...

    def prefill(self, model: ModelState, now: float) -> Batch:
        """Prompt chunks: admits waiting requests as memory allows."""
        ...

    def decode(self, model: ModelState, now: float) -> Batch:
        """Sequences that decode one token (or `max_steps`); may preempt."""
        ...

    def mixed(self, model: ModelState, now: float) -> Batch:
        """Decodes first, prompt chunks in what is left of the token budget."""
        ...
