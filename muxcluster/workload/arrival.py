"""One request of a workload: when it comes, to which model, how long, what it shares."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.request import ServiceClass


@dataclass(frozen=True, slots=True)
class Prefix:
    """The prompt in blocks of `block_tokens`, the last one perhaps partial.

    block_ids: equal ids at the start of two prompts are equal tokens, so they can share KV.
    """

    block_ids: tuple[int, ...]
    block_tokens: int

    def token_ids(self, num_tokens: int) -> NDArray[np.int32]:
        """int32 [num_tokens]: stand-ins for the prompt's tokens, its block's id each.

        So prompts have equal leading tokens exactly where they have equal leading blocks.
        """
        ids = np.asarray(self.block_ids, dtype=np.int32)
        return np.repeat(ids, self.block_tokens)[:num_tokens]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request to come. time_s: from the start of the workload.

    output_tokens: as many as it will get. prefix: None where nothing is known to be shared.
    """

    time_s: float
    request_id: str
    model: str
    prompt_tokens: int
    output_tokens: int
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    prefix: Prefix | None = None


def merged(streams: Iterable[Iterable[Arrival]]) -> Iterator[Arrival]:
    """Streams in order of time, as one; at equal times in the order of the streams.

    Holds one arrival a stream at a time.
    """
    return merge(*streams, key=attrgetter("time_s"))
