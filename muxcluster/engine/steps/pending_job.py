"""A job that was given to the device, and its result."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import Job, JobResult
from muxcluster.engine.sampling.results import Pending

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PendingJob:
    """A job whose rows were given to the device."""

    job: Job
    started: float  # by the monotonic clock
    pending: Pending

    @property
    def is_done(self) -> bool:
        return self.pending.is_done

    def result(self) -> JobResult:
        """Wait for the job's end. Its seconds count from the launch."""
        job, done = self.job, self.pending.result()
        broken = np.flatnonzero(job.rows.samples)[done.is_broken].tolist()
        if broken:
            logger.error("job %d: %s computed NaN or inf logits", job.job_id, job.model)
        counts = (job.rows.samples * job.max_steps).astype(np.int32)
        tokens = done.tokens.T.ravel()
        if done.runs:
            tokens, counts = _with_runs(tokens, counts, done.runs)
        return JobResult(
            job_id=job.job_id,
            tokens=tokens,
            counts=counts,
            seconds=time.monotonic() - self.started,
            logprobs=done.logprobs,
            prompt_logprobs=done.prompt_logprobs,
            padded=done.padded,
            broken_rows=tuple(broken),
            refused_rows=done.refused,
            mask_wait_s=done.mask_wait_s,
            vectors=done.vectors,
            image_tokens=done.image_tokens,
            image_s=done.image_s,
        )


def _with_runs(
    tokens: NDArray[np.int32], counts: NDArray[np.int32], runs: Mapping[int, Sequence[int]]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return tokens, row after row, and their counts by row, with `runs` behind a row's own."""
    ends, counts = counts.cumsum(), counts.copy()
    places: list[int] = []
    more: list[int] = []
    for row, run in runs.items():
        places += [int(ends[row])] * len(run)
        more += run
        counts[row] += len(run)
    return np.insert(tokens, places, np.array(more, np.int32)), counts
