"""A batch job's file as a unit can run it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from muxcluster.offline.blend.resources import ResourceModel
from muxcluster.offline.choice import Unplanned
from muxcluster.offline.prefix.prompts import flat_prompts
from muxcluster.workload.files.batchfile import NOTHING, Skips, read_batch


@dataclass(frozen=True, slots=True, eq=False)
class ReadJob:
    """What a file holds. num_known: requests whose output length is known. num_cut: those that the
    context cuts short or refuses."""

    job: Unplanned
    num_known: int
    num_cut: int


@dataclass(frozen=True, slots=True)
class BatchFile:
    """A job's file, and what it is planned for.

    default_output: output tokens of a line that names no most. size_bytes: KV that the batch may
    hold. digest: of the file's content, for who keeps results. skips: which of its lines are left
    out.
    """

    path: Path
    model: str
    resources: ResourceModel
    size_bytes: int
    block_tokens: int
    max_model_len: int
    default_output: int
    digest: str = ""
    skips: Skips = NOTHING

    def read(self, seed: int) -> ReadJob:
        """The job, outputs no longer than the context has room for. Raises ConfigError."""
        batch = read_batch(self.path, self.default_output, self.model, self.skips)
        prompts = flat_prompts(batch.ids, batch.offsets)
        outputs = np.minimum(
            batch.output_tokens, np.maximum(self.max_model_len - prompts.lengths, 1)
        )
        is_cut = prompts.lengths + batch.output_tokens > self.max_model_len
        job = Unplanned(prompts, outputs, self.resources, self.size_bytes, self.block_tokens, seed)
        return ReadJob(job, batch.num_known, int(np.count_nonzero(is_cut)))
