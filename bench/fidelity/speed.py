"""How fast this machine is at the moment: one whose host serves others too drifts by the minute."""

import time
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

_SIZE = 1024  # of square fp32 matrices, 4 MiB each
_NUM_STREAMED = 16  # more than caches hold, read once a repeat as decode steps read weights
_NUM_PRODUCTS = 3
_REPEATS = 7
_FEW_REPEATS = 3  # between stretches of a case


@dataclass(frozen=True, slots=True)
class MachineSpeed:
    """Seconds of fixed work, medians of a few repeats."""

    streamed_s: float  # 64 MiB of weights times 4 rows: bound by memory
    products_s: float  # products of whole matrices: bound by the processors

    @classmethod
    def now(cls, *, is_quick: bool = False) -> "MachineSpeed":
        """Measure it; takes about a second in which nothing else of ours should run.

        is_quick: half of that.
        """
        weights, rows = _matrices()
        repeats = _FEW_REPEATS if is_quick else _REPEATS
        streamed = median(_seconds_of(weights, rows) for _ in range(repeats))
        products = median(_seconds_of(weights[:_NUM_PRODUCTS], weights[0]) for _ in range(repeats))
        return cls(streamed, products)

    def slowness(self, other: "MachineSpeed") -> float:
        """Return how many times as long work takes now as it took at `other`.

        The geometric mean of both kinds of work: steps of few rows are of the first, of many rows
        of the second.
        """
        both = self.streamed_s / other.streamed_s * self.products_s / other.products_s
        return float(both**0.5)

    def drift_from(self, other: "MachineSpeed") -> float:
        """Return by how much the two differ, as a part of the faster one; 0: not at all."""
        pairs = (
            (self.streamed_s, other.streamed_s),
            (self.products_s, other.products_s),
        )
        return max(max(pair) / min(pair) - 1 for pair in pairs)


def _matrices() -> tuple[list[NDArray[np.float32]], NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((_SIZE, _SIZE), dtype=np.float32) for _ in range(_NUM_STREAMED)]
    return weights, rng.standard_normal((_SIZE, 4), dtype=np.float32)


def _seconds_of(weights: list[NDArray[np.float32]], right: NDArray[np.float32]) -> float:
    begun_s = time.perf_counter()
    for weight in weights:
        weight @ right
    return time.perf_counter() - begun_s
