"""BlendServe's dual scanner: compute-bound work from one end, memory-bound from the other."""

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
    """A request to start. place: its place in the tree."""

    place: int
    end: End


def share_memory(compute: float, memory: float, target: float, size: float) -> float:
    """How much of `size` bytes of KV the compute-bound end gets; the other end gets the rest.

    compute, memory, target: densities of the work at either end, and of the batch that is wanted.
    Bytes held are what every step reads, so densities mix by them: M_L + M_R = M and
    M_L * compute + M_R * memory = M * target. A target beyond both gives the nearer end all.
    """
    if compute == memory:
        return size
    return size * min(1.0, max(0.0, (target - memory) / (compute - memory)))


class DualScanner:
    """Hands out the requests of a job, each once, from both ends of its pieces.

    Either end works through one piece after the other and so shares all that a piece shares; the
    last piece (the only one, if all requests share a prefix) is worked on from both sides. Memory
    is divided by the densities of the requests at the two ends. The target is the density of the
    whole job and stays: what one end lacks when the other has run dry, no order gives back.
    """

    def __init__(self, pieces: Pieces) -> None:
        self.target = float(pieces.work.compute_s.sum() / pieces.work.memory_s.sum())
        self._places = pieces.places.tolist()
        self._density = pieces.request_work.density.tolist()
        self._next, self._end = 0, len(self._places)

    def __len__(self) -> int:
        """Requests not handed out yet."""
        return self._end - self._next

    def take(self, held_compute: float, held_memory: float, size: float) -> Taken | None:
        """The next request; None where both ends hold what they should, or nothing is left.

        held_compute, held_memory: bytes of KV of the running requests, by the end they came from.
        size: bytes that batch requests may hold now; it may differ from call to call, as
        interactive load does.
        """
        if not len(self):
            return None
        compute, memory = self._density[self._next], self._density[self._end - 1]
        share = share_memory(compute, memory, self.target, size)
        lack_compute, lack_memory = share - held_compute, size - share - held_memory
        if max(lack_compute, lack_memory) <= 0:
            return None
        if lack_compute >= lack_memory:
            self._next += 1
            return Taken(self._places[self._next - 1], End.COMPUTE)
        self._end -= 1
        return Taken(self._places[self._end], End.MEMORY)


def blend_order(
    pieces: Pieces,
    held_bytes: NDArray[np.float64],
    output_tokens: NDArray[np.float64],
    size: float,
) -> NDArray[np.int64]:
    """Places in the order they start if each holds its bytes for a step per output token.

    A forecast to plan and to compare with; while a job runs, ask a `DualScanner` what comes next.

    held_bytes, output_tokens: float64 [n] by place. size: bytes for all, more than 0.
    """
    if not size > 0:
        raise ValueError(f"expected memory for the batch of more than 0 bytes, found {size}")
    scanner = DualScanner(pieces)
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
        if not running:  # no remainder of sums of floats may keep memory from the next request
            held_compute = held_memory = 0.0
    return np.array(order, dtype=np.int64)
