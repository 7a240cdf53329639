"""Records which worker has seen which sequence: a worker needs a row's sampling parameters."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import Admission, Job, Rows
from muxcluster.core.unitspec import ModelSpec, UnitSpec

_NO_TOKENS: NDArray[np.int32] = np.empty(0, dtype=np.int32)


class _ModelLedger:
    """One model: the latest admission per row, and the one each rung's worker has seen.

    versions: int64 [num_rows], 0 = never admitted. seen: rung_id -> int64 [num_rows]. with_pixels:
    rows whose latest admission has the pixels of images.
    """

    def __init__(self, spec: ModelSpec, rung_ids: Sequence[int]) -> None:
        self.versions = np.zeros(spec.num_rows, dtype=np.int64)
        self.seen = {rung: np.zeros_like(self.versions) for rung in rung_ids}
        self.latest: list[Admission | None] = [None] * spec.num_rows
        self.with_pixels: set[int] = set()

    def drop_pixels(self, rows: Rows) -> None:
        """Forget the pixels of images that a job begins behind: only their positions count.

        What is before its start is computed. A sequence whose start goes back is admitted again.
        """
        for row, start in zip(rows.table_rows.tolist(), rows.starts.tolist(), strict=True):
            latest = self.latest[row] if row in self.with_pixels else None
            if latest is not None and start >= latest.images[-1].end:
                images = tuple(each.without_pixels() for each in latest.images)
                self.latest[row] = replace(latest, images=images)
                self.with_pixels.remove(row)


@dataclass(slots=True)
class AdmissionLedger:
    """Completes launches with the admissions their worker has not seen.

    Prefill and decode of a sequence may run in different workers. They share the memory with its
    tokens, but sampling parameters live in each process; a new worker knows none.
    """

    _models: dict[str, _ModelLedger]
    _next_version: int = 1

    @classmethod
    def of(cls, spec: UnitSpec, rung_ids: Sequence[int]) -> "AdmissionLedger":
        """Return an empty ledger for the unit's models and rungs."""
        return cls({model.name: _ModelLedger(model, rung_ids) for model in spec.models})

    def complete(self, job: Job, rung_id: int) -> Job:
        """Return the job with an admission (empty tokens) for each row that is new to its worker.

        Records the job's own admissions as seen by the rung it runs in. O(rows) in numpy.
        """
        ledger = self._models[job.model]
        seen = ledger.seen[rung_id]
        for admission in job.admissions:
            row = admission.row
            ledger.latest[row] = replace(admission, tokens=_NO_TOKENS)
            ledger.versions[row] = seen[row] = self._next_version
            self._next_version += 1
            if admission.images:
                ledger.with_pixels.add(row)
            else:
                ledger.with_pixels.discard(row)
        if ledger.with_pixels:
            ledger.drop_pixels(job.rows)
        rows = job.rows.table_rows
        unknown = rows[seen[rows] != ledger.versions[rows]]
        if len(unknown) == 0:
            return job
        seen[unknown] = ledger.versions[unknown]
        known = (ledger.latest[row] for row in unknown.tolist())
        extra = tuple(admission for admission in known if admission is not None)
        return replace(job, admissions=job.admissions + extra)

    def forget_worker(self, rung_id: int) -> None:
        """Forget what `rung_id` has seen: a new process runs there."""
        for ledger in self._models.values():
            ledger.seen[rung_id][:] = 0
