"""A stack of free integer ids, taken and given back in arrays."""

import numpy as np
from numpy.typing import NDArray


class IdStack:
    """The ids 0 .. size-1 that are free; the lowest are handed out first at the start.

    is_full: False where none is free at the start.
    """

    def __init__(self, size: int, *, is_full: bool = True) -> None:
        self._ids = np.arange(size - 1, -1, -1, dtype=np.int32)
        self._count = size if is_full else 0

    def __len__(self) -> int:
        return self._count

    @property
    def ids(self) -> NDArray[np.int32]:
        """The free ids, int32 [len(self)], in no useful order; a view."""
        return self._ids[: self._count]

    def take(self, count: int) -> NDArray[np.int32]:
        """Remove `count` ids, int32 [count]; the caller has checked that they are there."""
        assert 0 <= count <= self._count, f"{count} ids wanted, {self._count} free"
        rest = self._count - count
        taken = self._ids[rest : self._count][::-1].copy()
        self._count = rest
        return taken

    def give(self, ids: NDArray[np.integer]) -> None:
        """Put in ids (int32 [n]) that are not free; `take` hands them out in their order."""
        end = self._count + len(ids)
        assert end <= len(self._ids), "more ids are free than there are"
        self._ids[self._count : end] = ids[::-1]
        self._count = end

    def check(self) -> None:
        """Raise AssertionError where an id is free twice."""
        assert len(np.unique(self.ids)) == self._count, "an id is on the free list twice"
