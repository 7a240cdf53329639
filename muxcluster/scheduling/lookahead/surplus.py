"""Rows of a job whose sequences had ended before it did: see following.py."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import Job, JobResult, Rows
from muxcluster.scheduling.memory.admission import Memory
from muxcluster.scheduling.state.model import ModelState


def without_ended(memory: Memory, model: ModelState, job: Job) -> Job:
    """`job` ended: it without the rows whose sequences had ended before, whose slots are free now.

    The job itself where there were none.
    """
    table, rows = model.slots, job.rows
    if not table.num_written:
        return job
    is_over = table.is_written[rows.slots]
    if not is_over.any():
        return job
    for slot in rows.slots[is_over].tolist():
        memory.end_writes(model, slot)
    kept = ~is_over
    left = Rows(rows.slots[kept], rows.starts[kept], rows.counts[kept], rows.samples[kept])
    return replace(job, rows=left)


def result_without_ended(job: Job, left: Job, result: JobResult) -> JobResult:
    """What `job` came to, of the rows of `left` alone."""
    if left is job:
        return result
    kept: NDArray[np.bool_] = np.isin(job.rows.slots, left.rows.slots)
    places = dict(zip(kept.nonzero()[0].tolist(), range(len(left.rows)), strict=True))
    return replace(
        result,
        tokens=result.tokens[kept.repeat(result.counts)],
        counts=result.counts[kept],
        logprobs={places[row]: each for row, each in result.logprobs.items() if row in places},
        prompt_logprobs={
            places[row]: each for row, each in result.prompt_logprobs.items() if row in places
        },
        broken_rows=tuple(places[row] for row in result.broken_rows if row in places),
    )
