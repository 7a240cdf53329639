"""A batch job's file as its unit can run it, alone or beside a stream of interactive requests."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from muxcluster.core.request import ServiceClass
from muxcluster.offline.blend.resources import ResourceModel
from muxcluster.offline.choice import Unplanned
from muxcluster.offline.orders import order_requests
from muxcluster.offline.prompts import flat_prompts
from muxcluster.sim.loads import Load
from muxcluster.workload.arrival import Arrival, Prefix
from muxcluster.workload.batchfile import read_batch


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
    hold. digest: of the file's content, for who keeps results.
    """

    path: Path
    model: str
    resources: ResourceModel
    size_bytes: int
    block_tokens: int
    max_model_len: int
    default_output: int
    digest: str = ""

    def read(self, seed: int) -> ReadJob:
        """The job, outputs no longer than the context has room for. Raises ConfigError."""
        batch = read_batch(self.path, self.default_output, self.model)
        prompts = flat_prompts(batch.ids, batch.offsets)
        outputs = np.minimum(
            batch.output_tokens, np.maximum(self.max_model_len - prompts.lengths, 1)
        )
        is_cut = prompts.lengths + batch.output_tokens > self.max_model_len
        job = Unplanned(prompts, outputs, self.resources, self.size_bytes, self.block_tokens, seed)
        return ReadJob(job, batch.num_known, int(np.count_nonzero(is_cut)))


@dataclass(frozen=True, slots=True)
class WithBatch:
    """A load and, there from the start, a batch job in one of `offline.orders`."""

    load: Load
    file: BatchFile
    order: str

    def arrivals(self, seed: int, end_s: float) -> Iterator[Arrival]:
        """The whole job first. Raises ConfigError, and ValueError for an unknown order."""
        job = self.file.read(seed).job
        prompts, outputs = job.prompts, job.output_tokens.tolist()
        for number in order_requests(job.with_tree(), self.order).tolist():
            ids = prompts.ids[prompts.offsets[number] : prompts.offsets[number + 1]]
            yield Arrival(
                0.0,
                f"batch/{number}",
                self.file.model,
                len(ids),
                outputs[number],
                ServiceClass.BATCH,
                Prefix(tuple(ids.tolist()), 1),
            )
        yield from self.load.arrivals(seed, end_s)
