"""Jobs that nobody runs."""

import numpy as np

from muxcluster.core.job import Job, Phase, Rows, TableDelta


def job_of(worker_id: int, share: float, job_id: int = 1, model: str = "llama") -> Job:
    nothing = np.empty(0, dtype=np.int32)
    rows = Rows(nothing, nothing, nothing, np.empty(0, dtype=np.bool_))
    tables = TableDelta(nothing, nothing, np.empty((0, 1), dtype=np.int32))
    return Job(job_id, model, Phase.DECODE, worker_id, share, rows, tables)
