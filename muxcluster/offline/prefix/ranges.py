"""Operations on many ranges of numbers at once."""

import numpy as np
from numpy.typing import NDArray


def joined_ranges(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers start to start + size - 1 of each range, joined, int64."""
    numbers: NDArray[np.int64] = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
    numbers += np.arange(len(numbers))
    return numbers


def range_sums(
    values: NDArray[np.float64], starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the sum of values[start:start + size] for each range; ranges may overlap."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    total: NDArray[np.float64] = sums[starts + sizes] - sums[starts]
    return total
