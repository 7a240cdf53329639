"""A planned part of a batch job, as its unit gets it: the unit decides when each line starts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class BatchPart:
    """Lines of one model that one unit feeds to itself as its memory comes free.

    It holds no prompts: each line comes as a `Request` with its `LinePlace`, before or after the
    unit wants to start it.
    """

    part_id: str
    model: str
    order: str  # of `offline.order.orders`
    tree: Mapping[str, NDArray[np.int64]]  # the arrays of the lines' `PrefixTree`, by name
    # float64 [n] by place in the tree, output tokens: expected, and known ones (else NaN)
    expected: NDArray[np.float64]
    known: NDArray[np.float64]
    resources: Mapping[str, float]  # the fields of the model's `ResourceModel`
    size_bytes: float  # KV that the batch may hold
    shared_prefix_tokens: int = 0  # see `OfflineJob`
    seed: int = 0
    # Of the parts of a model, the lines of the one with the least start next
    urgency: float = 0.0
    after: tuple[str, ...] = ()  # models whose parts in the unit must be over before
    over: tuple[int, ...] = ()  # numbers of lines that have ended elsewhere

    def __len__(self) -> int:
        return len(self.expected)


@dataclass(frozen=True, slots=True)
class LinePlace:
    """The line that a request is for: its number in a part."""

    part_id: str
    number: int


@dataclass(frozen=True, slots=True)
class LineOver:
    """No request, or no further one, will come for this line."""

    place: LinePlace


@dataclass(frozen=True, slots=True)
class PartOver:
    """Forget the part; what it pinned is freed, requests that wait are no longer held back."""

    part_id: str


PartMessage = BatchPart | LineOver | PartOver


class PartSink(Protocol):
    """Takes the parts of a planned batch and feeds them to their units."""

    def add_part(self, part: BatchPart, unit_id: str) -> None:
        """Feed a part to this unit, or to another unit of its model while that one is away.

        Its lines come as requests with their `LinePlace`.
        """
        ...

    def end_line(self, place: LinePlace) -> None:
        """Note that no further request comes for a line: it has ended, or never ran."""
        ...

    def end_part(self, part_id: str) -> None:
        """Forget a part, with all that it holds in units. Idempotent."""
        ...
