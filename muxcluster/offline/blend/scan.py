"""BlendServe's dual scanner: compute-bound work from one end, memory-bound from the other."""

from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from muxcluster.offline.blend.pieces import Pieces


class End(Enum):
    """The end of the sorted pieces that a request is taken from."""

    COMPUTE = "compute"
    MEMORY = "memory"


class Taken(NamedTuple):
    """A request to start."""

    place: int  # its place in the tree
    end: End


def share_memory(compute: float, memory: float, target: float, size: float) -> float:
    """Return how much of `size` bytes of KV the compute-bound end gets; the other gets the rest.

    compute, memory, target: densities of the work at either end, and of the desired batch. Every
    step reads all bytes held, so densities mix by them: M_L + M_R = M and
    M_L · compute + M_R · memory = M · target. A target beyond both gives the nearer end all.
    """
    if compute == memory:
        return size
    return size * min(1.0, max(0.0, (target - memory) / (compute - memory)))


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """Requests in order, the work most bound by compute first; taken from both ends."""

    places: NDArray[np.int64]  # int64 [n], places of the tree
    pieces: NDArray[np.int64]  # int64 [n], number of each one's piece; pieces are contiguous
    density: NDArray[np.float64]  # float64 [n]
    target: float  # density of the job that they belong to

    def __len__(self) -> int:
        return len(self.places)

    def take(self, positions: NDArray[np.int64]) -> "Line":
        """Return the requests at these positions (int64), in that order."""
        return Line(
            self.places[positions], self.pieces[positions], self.density[positions], self.target
        )


def line_of(pieces: Pieces) -> Line:
    """Return the line of all pieces; its target is the density of the whole."""
    return Line(
        pieces.places,
        np.repeat(np.arange(len(pieces)), pieces.size),
        pieces.request_work.density,
        float(pieces.work.compute_s.sum() / pieces.work.memory_s.sum()),
    )


def plain_line(places: NDArray[np.int64], pieces: NDArray[np.int64]) -> Line:
    """Return a line that is taken in this order only: one end gets all memory.

    places, pieces: int64 [n].
    """
    return Line(places, pieces, np.zeros(len(places)), 0.0)


class DualScanner:
    """Hands out the requests of a line, each once, from both of its ends.

    Each end works through one piece after the other, so requests of a piece share its prefix; the
    last piece (the only one, if all requests share a prefix) is taken from both sides. Memory is
    divided by the densities of the requests at the two ends. The target is the density of the whole
    job and does not change.
    """

    def __init__(self, line: Line, *, is_ramping: bool = False) -> None:
        """is_ramping: nothing decodes yet, so the memory-bound end is filled first: its requests
        have most decoding per token to prefill (BatchLLM's R), and later prefill overlaps with it.
        """
        self.target = line.target
        self._line = line
        self._places = line.places.tolist()
        self._density = line.density.tolist()
        self._next, self._end = 0, len(self._places)
        self._is_ramping = is_ramping

    def __len__(self) -> int:
        """Return the number of requests not handed out yet."""
        return self._end - self._next

    def take(
        self, held_compute: float, held_memory: float, size: float, least_compute: float = 0.0
    ) -> Taken | None:
        """Take the next request; None where both ends hold their share, or nothing is left.

        held_compute, held_memory: bytes of KV of the running requests, by the end they came from:
        now, on average or at their peak, as the caller chooses. size: bytes that batch requests may
        hold now; may change between calls. least_compute: bytes that the compute-bound end may hold
        in any case, up to half of the size: a few chunks, so that prefill never waits.
        """
        if not len(self):
            return None
        compute, memory = self._density[self._next], self._density[self._end - 1]
        share = share_memory(compute, memory, self.target, size)
        share = max(share, min(least_compute, size / 2))
        lack_compute, lack_memory = share - held_compute, size - share - held_memory
        if max(lack_compute, lack_memory) <= 0:
            return None
        self._is_ramping = self._is_ramping and lack_memory > 0
        if lack_compute >= lack_memory and not self._is_ramping:
            self._next += 1
            return Taken(self._places[self._next - 1], End.COMPUTE)
        self._end -= 1
        return Taken(self._places[self._end], End.MEMORY)

    def begun(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the remaining places of the piece that each end has begun, int64, in order.

        If both have begun the same piece, it counts for the compute-bound end.
        """
        line, first, last = self._line, self._next, self._end
        pieces = line.pieces[first:last]
        nothing = first, first
        head, tail = nothing, (last, last)
        if first and len(pieces) and pieces[0] == line.pieces[first - 1]:
            head = first, first + int(np.searchsorted(pieces != pieces[0], True))
        if last < len(line) and len(pieces) and pieces[-1] == line.pieces[last]:
            tail = last - int(np.searchsorted(pieces[::-1] != pieces[-1], True)), last
        return line.places[slice(*head)], line.places[max(tail[0], head[1]) : tail[1]]


def blend_order(
    pieces: Pieces,
    held_bytes: NDArray[np.float64],
    output_tokens: NDArray[np.float64],
    size: float,
) -> NDArray[np.int64]:
    """Return places in the order they start if each holds its bytes for a step per output token.

    A forecast for planning and comparison; a running job asks a `DualScanner`.

    held_bytes, output_tokens: float64 [n] by place. size: bytes for all, more than 0.
    """
    if not size > 0:
        raise ValueError(f"expected memory for the batch of more than 0 bytes, found {size}")
    scanner = DualScanner(line_of(pieces))
    needs, steps = held_bytes.tolist(), output_tokens.tolist()
    held_compute = held_memory = now = 0.0
    running: list[tuple[float, int, Taken]] = []
    order: list[int] = []
    while len(scanner):
        taken = scanner.take(held_compute, held_memory, size)
        if taken is None:
            now, _, taken = heappop(running)
            change = -needs[taken.place]
        else:
            change = needs[taken.place]
            heappush(running, (now + steps[taken.place], len(order), taken))
            order.append(taken.place)
        if taken.end is End.COMPUTE:
            held_compute += change
        else:
            held_memory += change
        if not running:  # rounding errors of the sums must not block the next request
            held_compute = held_memory = 0.0
    return np.array(order, dtype=np.int64)
