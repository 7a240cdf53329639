"""Reading of a batch job's file for one unit."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from muxcluster.offline.choice import Unplanned
from muxcluster.offline.prefix.prompts import flat_prompts
from muxcluster.placement.cost.resources import ResourceModel
from muxcluster.workload.files.batchfile import NOTHING, Skips, read_batch


@dataclass(frozen=True, slots=True, eq=False)
class ReadJob:
    """The job of a file."""

    job: Unplanned
    num_known: int  # requests whose output length is known
    num_cut: int  # requests that the context cuts short or refuses


@dataclass(frozen=True, slots=True)
class BatchFile:
    """A job's file and the unit it is planned for."""

    path: Path
    model: str
    resources: ResourceModel
    size_bytes: int  # KV that the batch may hold
    block_tokens: int
    max_model_len: int
    default_output: int  # output tokens of a line without a limit
    digest: str = ""  # of the file's content, to key cached results
    skips: Skips = NOTHING  # lines left out

    def read(self, seed: int) -> ReadJob:
        """Read the job, outputs cut to the context. Raises ConfigError."""
        batch = read_batch(self.path, self.default_output, self.model, self.skips)
        prompts = flat_prompts(batch.ids, batch.offsets)
        outputs = np.minimum(
            batch.output_tokens, np.maximum(self.max_model_len - prompts.lengths, 1)
        )
        is_cut = prompts.lengths + batch.output_tokens > self.max_model_len
        job = Unplanned(prompts, outputs, self.resources, self.size_bytes, self.block_tokens, seed)
        return ReadJob(job, batch.num_known, int(np.count_nonzero(is_cut)))
