"""Unread columns in the prefix cache: their order of eviction, pins, and how they are given up."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import Side
from muxcluster.kvcache.model import ModelKv
from muxcluster.kvcache.pool import OWNER_BIT, BlockLedger, BlockPool

Entry = tuple[str, int]  # a model's name and one of its columns


class EvictionOrder:
    """Unread cached columns: of the batch class (right side), then interactive ones, then pinned.

    Least recently released first. A sequence that closes adds its columns deepest first, and a
    reader or a pin of a column holds its ancestors too; so children always stand before their
    parents and eviction is leaf-first.
    """

    def __init__(self) -> None:
        self._entries: dict[int, OrderedDict[Entry, None]] = {
            OWNER_BIT[side]: OrderedDict() for side in (Side.RIGHT, Side.LEFT)
        }
        self._pinned: OrderedDict[Entry, None] = OrderedDict()
        self.num_pinned: Counter[str] = Counter()  # pinned columns here, by model

    def __len__(self) -> int:
        return sum(map(len, self._entries.values())) + len(self._pinned)

    def __iter__(self) -> Iterator[Entry]:
        return chain(chain.from_iterable(self._entries.values()), self._pinned)

    def is_pinned(self, entry: Entry) -> bool:
        """True where it is here and pinned."""
        return entry in self._pinned

    def release(
        self,
        model: str,
        columns: Sequence[int],
        holders: Sequence[int | None],
        owner: int,
        pinned: frozenset[int] = frozenset(),
    ) -> None:
        """Add `columns` that were released in this order; holders[i] publishes the i-th one's key.

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
        """Remove `entries`, which are all here and got a reader again."""
        for entry in entries:
            if entry in self._pinned:
                self._forget_pinned(entry)
            else:
                del self._entries[owner][entry]

    def pin(self, model: str, columns: Sequence[int], owner: int) -> None:
        """Pin `columns` (all here, deepest first): they are evicted after all others."""
        for column in columns:
            entry = model, column
            if entry in self._pinned:
                self._pinned.move_to_end(entry)
            else:
                del self._entries[owner][entry]
                self._add_pinned(entry)

    def unpin(self, model: str, columns: Sequence[int], owner: int) -> None:
        """Unpin `columns` (pinned, deepest first), as if they had been released just now."""
        for column in columns:
            self._forget_pinned((model, column))
            self._entries[owner][model, column] = None

    def take(self, blocks: int, sizes: Mapping[str, int]) -> dict[str, list[int]]:
        """Remove entries until they hold `blocks` blocks; return the columns of each model.

        sizes: blocks of a column. Raises AssertionError where there are fewer blocks.
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


class _Pin(NamedTuple):
    kv: ModelKv
    owner: int
    keys: tuple[bytes, ...]


class Pins:
    """Prefixes that requests to come will need, by pin id; a block in any of them is pinned.

    A pin only delays eviction: its blocks may not be computed yet, and sequences that are short of
    blocks still get them. Chains begin at the root, so ancestors of a pinned column are pinned too.
    """

    def __init__(self, models: Mapping[str, ModelKv], order: EvictionOrder) -> None:
        self._models = models
        self._order = order
        self._pins: dict[str, _Pin] = {}
        self._counts = {owner: Counter[bytes]() for owner in OWNER_BIT.values()}

    @property
    def idle_blocks(self) -> int:
        """Unread pinned blocks in the cache."""
        counts = self._order.num_pinned.items()
        return sum(self._models[name].columns.blocks_per_column * count for name, count in counts)

    def add(self, pin_id: str, model: str, hashes: Sequence[bytes], side: Side) -> None:
        """Pin the blocks of the chain `hashes`, instead of what the same id had pinned."""
        self.remove(pin_id)
        pin = self._pins[pin_id] = _Pin(self._models[model], OWNER_BIT[side], tuple(hashes))
        self._counts[pin.owner].update(pin.keys)
        self._order.pin(model, self._unread(pin, pin.keys), pin.owner)

    def remove(self, pin_id: str) -> None:
        """Remove the pin; an unknown one is ignored."""
        pin = self._pins.pop(pin_id, None)
        if pin is None:
            return
        counts = self._counts[pin.owner]
        counts.subtract(pin.keys)
        freed = [key for key in pin.keys if not counts[key]]
        for key in freed:
            del counts[key]
        self._order.unpin(pin.kv.model.name, self._unread(pin, freed), pin.owner)

    def among(self, kv: ModelKv, columns: Sequence[int], owner: int) -> frozenset[int]:
        """Return those of `columns` (of one side) that are pinned."""
        counts = self._counts[owner]
        if not counts:
            return frozenset()
        keys = zip(columns, kv.prefix.keys(columns), strict=True)
        return frozenset(column for column, key in keys if key in counts)

    def _unread(self, pin: _Pin, keys: Sequence[bytes]) -> list[int]:
        """Return the unread cached columns that hold `keys`, deepest first."""
        columns = pin.kv.prefix.holders(keys, pin.owner)
        refs = pin.kv.columns.refs
        return [column for column in reversed(columns) if refs[column] == 0]

    def check(self) -> None:
        """Raise AssertionError where other columns than pinned ones are in the pinned queue."""
        for owner, counts in self._counts.items():
            keys = [key for pin in self._pins.values() if pin.owner == owner for key in pin.keys]
            assert counts == Counter(keys), "pins are miscounted"
        found = Counter[str]()
        for name, column in self._order:
            kv = self._models[name]
            is_pinned = column in self.among(kv, (column,), int(kv.columns.owners[column]))
            assert is_pinned == self._order.is_pinned((name, column)), "pinned in the wrong queue"
            found[name] += is_pinned
        assert +found == +self._order.num_pinned, "pinned columns are miscounted"


class CachedColumns:
    """Keeps, revives and evicts unread columns of all models of a unit."""

    def __init__(self, pool: BlockPool, ledger: BlockLedger, models: Mapping[str, ModelKv]) -> None:
        self._pool, self._ledger, self._models = pool, ledger, models
        self.order = EvictionOrder()
        self.pins = Pins(models, self.order)

    def retire(
        self, kv: ModelKv, columns: NDArray[np.int32], owner: int, *, is_batch: bool
    ) -> None:
        """Keep or free `columns` (int32 [n], deepest first), whose last reader left."""
        leaving = columns.tolist()
        holders = kv.prefix.retire(leaving, owner)
        pinned = self.pins.among(kv, leaving, owner)
        self.order.release(kv.model.name, leaving, holders, owner, pinned)
        is_freed = [holder != column for column, holder in zip(leaving, holders, strict=True)]
        freed = columns[np.array(is_freed, dtype=np.bool_)]
        if len(freed):
            self._free(kv, freed)
        name, per_column = kv.model.name, kv.columns.blocks_per_column
        self._ledger.give(name, len(freed) * per_column, is_batch=is_batch)
        num_kept = len(columns) - len(freed)
        self._ledger.cache(name, num_kept * per_column, is_batch=is_batch)

    def revive(
        self, kv: ModelKv, columns: NDArray[np.int32], owner: int, *, is_batch: bool
    ) -> None:
        """Take `columns` (int32 [n], unread) out of the eviction order: they get a reader."""
        self.order.remove(((kv.model.name, column) for column in columns.tolist()), owner)
        blocks = len(columns) * kv.columns.blocks_per_column
        self._ledger.revive(kv.model.name, blocks, is_batch=is_batch)

    def make_room(self, blocks: int) -> None:
        """Evict until `blocks` blocks are free or nothing is left to evict."""
        missing = blocks - self._ledger.free
        if missing > 0:
            self.evict(min(missing, self._ledger.evictable))

    def evict(self, blocks: int) -> None:
        """Free at least `blocks` blocks of cached columns."""
        sizes = {name: kv.columns.blocks_per_column for name, kv in self._models.items()}
        for name, columns in self.order.take(blocks, sizes).items():
            kv = self._models[name]
            ids = np.array(columns, dtype=np.int32)
            kv.prefix.forget(columns, kv.columns.owners[ids].tolist())
            self._free(kv, ids)
            self._ledger.evict(name, len(columns) * kv.columns.blocks_per_column)

    def _free(self, kv: ModelKv, columns: NDArray[np.int32]) -> None:
        self._pool.release(*kv.columns.remove(columns))
