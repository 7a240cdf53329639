"""The order in which unreferenced cached columns are given up, over all models of a unit."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

    def take(self, blocks: int, sizes: Mapping[str, int]) -> dict[str, list[int]]:
        """Remove the next to give up until they hold `blocks` blocks; columns of each model.

        sizes: blocks of a column. Raises AssertionError where there are not as many.
        """
        taken: dict[str, list[int]] = {}
        for entries in self._entries.values():
            while blocks > 0 and entries:
                model, column = entries.popitem(last=False)[0]
                taken.setdefault(model, []).append(column)
                blocks -= sizes[model]
        assert blocks <= 0, "nothing to evict"
        return taken
