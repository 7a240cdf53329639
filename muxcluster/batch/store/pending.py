"""The lines of a batch that have not ended: their numbers at once, the rest as it is needed."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Pending:
    """A line that has not ended. offset, size: in the input file. weight: estimated tokens."""

    line: int
    offset: int
    size: int
    model: str
    weight: int


class PendingLines:
    """Lines to be taken some at a time; a million of them take eight bytes each until then."""

    def __init__(
        self,
        numbers: NDArray[np.int64],
        weights: Mapping[str, int],
        read: Callable[[Sequence[int]], list[Pending]],
    ) -> None:
        """numbers: int64 [n], in the order they are taken. weights: of all, by model. read: returns
        the lines with these numbers, in that order."""
        self.weights = weights
        self._numbers = numbers
        self._read = read
        self._num_taken = 0

    @classmethod
    def of(cls, lines: Sequence[Pending]) -> "PendingLines":
        """Return `lines` in their order."""
        by_number = {line.line: line for line in lines}
        numbers = np.array(list(by_number), dtype=np.int64)
        weights: Counter[str] = Counter()
        for line in lines:
            weights[line.model] += line.weight
        return cls(numbers, weights, lambda some: [by_number[number] for number in some])

    @property
    def weight(self) -> int:
        """Weight of all lines."""
        return sum(self.weights.values())

    def __len__(self) -> int:
        """Return the number of lines not taken yet."""
        return len(self._numbers) - self._num_taken

    def take(self, count: int) -> list[Pending]:
        """Return the next lines, at most `count`; may wait for the disk. Raises StorageFailed."""
        first = self._num_taken
        numbers = self._numbers[first : first + count].tolist()
        self._num_taken = first + len(numbers)
        return self._read(numbers)
