"""A job that was given to the device, and its result."""

import logging
import time
from dataclasses import dataclass

import numpy as np

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
        return JobResult(
            job_id=job.job_id,
            tokens=done.tokens.T.ravel(),
            counts=(job.rows.samples * job.max_steps).astype(np.int32),
            seconds=time.monotonic() - self.started,
            logprobs=done.logprobs,
            prompt_logprobs=done.prompt_logprobs,
            padded=done.padded,
            broken_rows=tuple(broken),
            refused_rows=done.refused,
            mask_wait_s=done.mask_wait_s,
        )
