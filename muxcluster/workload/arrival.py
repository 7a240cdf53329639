"""One request of a workload: time, model, lengths, shared prefix."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.request import ServiceClass


@dataclass(frozen=True, slots=True)
class Prefix:
    """The prompt in blocks of `block_tokens`, the last one perhaps partial."""

    # Equal leading ids of two prompts are equal tokens, so the prompts can share KV.
    block_ids: tuple[int, ...]
    block_tokens: int

    def token_ids(self, num_tokens: int) -> NDArray[np.int32]:
        """Return int32 [num_tokens] placeholders: each token is the id of its block.

        So prompts have equal leading tokens exactly where they have equal leading blocks.
        """
        ids = np.asarray(self.block_ids, dtype=np.int32)
        return np.repeat(ids, self.block_tokens)[:num_tokens]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request to come."""

    time_s: float  # from the start of the workload
    request_id: str
    model: str
    prompt_tokens: int
    output_tokens: int  # exactly as many
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    prefix: Prefix | None = None  # None where nothing is known to be shared


def merged(streams: Iterable[Iterable[Arrival]]) -> Iterator[Arrival]:
    """Merge streams in order of time; at equal times in the order of the streams.

    Holds one arrival per stream at a time.
    """
    return merge(*streams, key=attrgetter("time_s"))
