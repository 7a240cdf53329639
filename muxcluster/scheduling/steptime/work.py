"""What a job does, as far as its seconds depend on it."""

from typing import NamedTuple

import numpy as np

from muxcluster.core.job import Job, Phase


class JobWork(NamedTuple):
    """Decoding rows and prompt tokens of one job."""

    num_rows: float = 0.0  # that decode
    context: float = 0.0  # tokens these attend to, the new ones included, summed over the rows
    num_tokens: float = 0.0  # of prompts
    attention: float = 0.0  # Σ count · (start + count / 2) over the prompts' rows

    @property
    def phase(self) -> Phase:
        """Phase by content: a mixed job without prompt tokens is a decode job."""
        if not self.num_tokens:
            return Phase.DECODE
        return Phase.MIXED if self.num_rows else Phase.PREFILL

    def with_rows(self, count: float, lengths: float) -> "JobWork":
        """Add `count` decoding rows, which attend to `lengths` tokens together."""
        num_rows, context, num_tokens, attention = self
        return JobWork(num_rows + count, context + lengths, num_tokens, attention)

    def with_prompt(self, start: float, count: float) -> "JobWork":
        """Add `count` prompt tokens from position `start` on."""
        num_rows, context, num_tokens, attention = self
        attention += count * (start + count / 2)
        return JobWork(num_rows, context, num_tokens + count, attention)


def work_of(job: Job) -> JobWork:
    """Return the work of one step of `job`, halfway through where it has several.

    A row of one token in a mixed job counts as decoding.
    """
    starts = job.rows.starts.astype(np.float64)
    if job.phase is Phase.DECODE:
        num_rows = len(starts)
        half = (job.max_steps + 1) / 2
        return JobWork(num_rows, float(np.add.reduce(starts)) + num_rows * half)
    counts = job.rows.counts.astype(np.float64)
    num_tokens = float(np.add.reduce(counts))
    attention = float(counts.dot(starts) + counts.dot(counts) / 2)
    if job.phase is Phase.PREFILL:
        return JobWork(0.0, 0.0, num_tokens, attention)
    is_one = (counts == 1).astype(np.float64)
    num_decodes = float(is_one.dot(is_one))
    starting = float(is_one.dot(starts))
    return JobWork(
        num_decodes,
        starting + num_decodes,
        num_tokens - num_decodes,
        attention - starting - num_decodes / 2,
    )
