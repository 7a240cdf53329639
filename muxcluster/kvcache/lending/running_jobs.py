"""What the copies of running jobs touch, until each job has ended."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from muxcluster.kvcache.model_kv import ModelKv


@dataclass(frozen=True, slots=True, eq=False)
class Restore:
    """Lent columns of one model that a running job makes whole.

    is_left: True where they are interactive ones. slots, counts: int32 [n], the sequences and how
        many columns of each were lent. ends: int32 [n], columns of each in all at that time.
    rows, positions, columns: int32 [m], the columns but kept ones: whose they are, where in the
        table, and their ids; those of one slot together and in order.
    before, after: int32 [m, blocks_per_column], their blocks. is_fresh: bool, same shape.
    """

    kv: ModelKv
    is_left: bool
    slots: NDArray[np.int32]
    counts: NDArray[np.int32]
    ends: NDArray[np.int32]
    rows: NDArray[np.int32]
    positions: NDArray[np.int32]
    columns: NDArray[np.int32]
    before: NDArray[np.int32]
    after: NDArray[np.int32]
    is_fresh: NDArray[np.bool_]
    sources: NDArray[np.int32]


@dataclass(slots=True, eq=False)
class JobCopies:
    """One job's copies. saved: whose tokens it saves. blocked: left slots that it keeps out."""

    frames: list[NDArray[np.int32]] = field(default_factory=list)
    saved: set[tuple[str, int]] = field(default_factory=set)
    restores: list[Restore] = field(default_factory=list)
    blocked: set[tuple[str, int]] = field(default_factory=set)


class RunningJobs:
    """The jobs with copies that have not ended yet."""

    def __init__(self) -> None:
        self._jobs: dict[int, JobCopies] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[JobCopies]:
        return iter(self._jobs.values())

    @property
    def ids(self) -> list[int]:
        """Their job ids."""
        return list(self._jobs)

    def of(self, job_id: int) -> JobCopies:
        """The job's copies so far."""
        return self._jobs.setdefault(job_id, JobCopies())

    def pop(self, job_id: int) -> JobCopies | None:
        """The job has ended: its copies, None where it had none."""
        return self._jobs.pop(job_id, None)

    def blocks(self, model: str, slot: int) -> bool:
        """True while a job restores from a block that the left sequence lies over."""
        return any((model, slot) in job.blocked for job in self)

    def forget(self, model: str, slot: int) -> None:
        """The sequence is closed."""
        for job in self._jobs.values():
            job.saved.discard((model, slot))
            job.blocked.discard((model, slot))
