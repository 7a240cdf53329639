"""The order in which unreferenced cached columns are given up, over all models of a unit."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from muxcluster.core.job import Side
from muxcluster.kvcache.pool import OWNER_BIT

Entry = tuple[str, int]
"""A model's name and one of its columns."""


class EvictionOrder:
    """Least recently released first: the batch class (right side), then the interactive one, then
    what is pinned.

    A sequence that closes adds its columns deepest first, and whoever reads a column reads its
    ancestors too, as does who pins it; so children always stand before their parents and eviction
    is leaf-first.
    """

    def __init__(self) -> None:
        self._entries: dict[int, OrderedDict[Entry, None]] = {
            OWNER_BIT[side]: OrderedDict() for side in (Side.RIGHT, Side.LEFT)
        }
        self._pinned: OrderedDict[Entry, None] = OrderedDict()
        self.num_pinned: Counter[str] = Counter()
        """Pinned columns here, by model."""

    def __len__(self) -> int:
        return sum(map(len, self._entries.values())) + len(self._pinned)

    def __iter__(self) -> Iterator[Entry]:
        return chain(chain.from_iterable(self._entries.values()), self._pinned)

    def is_pinned(self, entry: Entry) -> bool:
        """True where it is here and is given up after all that are not."""
        return entry in self._pinned

    def release(
        self,
        model: str,
        columns: Sequence[int],
        holders: Sequence[int | None],
        owner: int,
        pinned: frozenset[int] = frozenset(),
    ) -> None:
        """`columns` were released just now, in this order; holders[i] publishes the i-th one's key.

        Those that hold their own key are added; other holders are renewed where they are here.
        """
        entries = self._entries[owner]
        for column, holder in zip(columns, holders, strict=True):
            if holder == column:
                if column in pinned:
                    self._add_pinned((model, column))
                else:
                    entries[model, column] = None
            elif holder is not None:
                for queue in (entries, self._pinned):
                    if (model, holder) in queue:
                        queue.move_to_end((model, holder))

    def remove(self, entries: Iterable[Entry], owner: int) -> None:
        """`entries`, all of them here, got a reader again."""
        for entry in entries:
            if entry in self._pinned:
                self._forget_pinned(entry)
            else:
                del self._entries[owner][entry]

    def pin(self, model: str, columns: Sequence[int], owner: int) -> None:
        """`columns`, all here, deepest first, are given up after all that are not pinned."""
        for column in columns:
            entry = model, column
            if entry in self._pinned:
                self._pinned.move_to_end(entry)
            else:
                del self._entries[owner][entry]
                self._add_pinned(entry)

    def unpin(self, model: str, columns: Sequence[int], owner: int) -> None:
        """`columns`, pinned, deepest first, are again as if they had been released just now."""
        for column in columns:
            self._forget_pinned((model, column))
            self._entries[owner][model, column] = None

    def take(self, blocks: int, sizes: Mapping[str, int]) -> dict[str, list[int]]:
        """Remove the next to give up until they hold `blocks` blocks; columns of each model.

        sizes: blocks of a column. Raises AssertionError where there are not as many.
        """
        taken: dict[str, list[int]] = {}
        for entries in (*self._entries.values(), self._pinned):
            while blocks > 0 and entries:
                model, column = entries.popitem(last=False)[0]
                taken.setdefault(model, []).append(column)
                blocks -= sizes[model]
                if entries is self._pinned:
                    self.num_pinned[model] -= 1
        assert blocks <= 0, "nothing to evict"
        return taken

    def _add_pinned(self, entry: Entry) -> None:
        self._pinned[entry] = None
        self.num_pinned[entry[0]] += 1

    def _forget_pinned(self, entry: Entry) -> None:
        del self._pinned[entry]
        self.num_pinned[entry[0]] -= 1
