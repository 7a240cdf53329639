"""The order in which unreferenced cached columns are given up, over all models of a unit."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from muxcluster.core.job import Side
from muxcluster.kvcache.pool import OWNER_BIT

Entry = tuple[str, int]
"""A model's name and one of its columns."""


class EvictionOrder:
    """Least recently released first, the batch class (right side) before the interactive one.

    A sequence that closes adds its columns deepest first, and whoever reads a column reads its
    ancestors too; so children always stand before their parents and eviction is leaf-first.
    """

    def __init__(self) -> None:
        self._entries: dict[int, OrderedDict[Entry, None]] = {
            OWNER_BIT[side]: OrderedDict() for side in (Side.RIGHT, Side.LEFT)
        }

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    def __iter__(self) -> Iterator[Entry]:
        return chain.from_iterable(self._entries.values())

    def release(
        self, model: str, columns: Sequence[int], holders: Sequence[int | None], owner: int
    ) -> None:
        """`columns` were released just now, in this order; holders[i] publishes the i-th one's key.

        Those that hold their own key are added; other holders are renewed where they are here.
        """
        entries = self._entries[owner]
        for column, holder in zip(columns, holders, strict=True):
            if holder == column:
                entries[model, column] = None
            elif holder is not None and (model, holder) in entries:
                entries.move_to_end((model, holder))

    def remove(self, entries: Iterable[Entry], owner: int) -> None:
        """`entries`, all of them here, got a reader again."""
        for entry in entries:
            del self._entries[owner][entry]

    def pop(self) -> Entry:
        """Remove and return the next entry to give up. Raises KeyError where there is none."""
        for entries in self._entries.values():
            if entries:
                return entries.popitem(last=False)[0]
        raise KeyError("nothing to evict")
