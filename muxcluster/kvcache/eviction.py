"""Unread columns in the prefix cache: their order of eviction, pins, and how they are given up."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from muxcluster.kvcache.model import ModelKv
from muxcluster.kvcache.pool import LEFT, RIGHT, BlockLedger, BlockPool

Entry = tuple[str, int]  # the name of a kind of layers and one of its columns


class EvictionOrder:
    """Unread cached columns: those that only batch sequences read, then others, then pinned ones.

    Least recently released first. A sequence that closes adds its columns deepest first, and a
    reader or a pin of a column holds its ancestors too, which interactive sequences read if they
    read the column; so children always stand before their parents and eviction is leaf-first. Where
    layers have a window, sequences give parents back before children, which need none to be found.
    """

    def __init__(self) -> None:
        self._batch: OrderedDict[Entry, None] = OrderedDict()
        self._others: OrderedDict[Entry, None] = OrderedDict()
        self._pinned: OrderedDict[Entry, None] = OrderedDict()
        self.num_pinned: Counter[str] = Counter()  # pinned columns here, by kind of layers

    def __len__(self) -> int:
        return sum(map(len, self._queues))

    def __iter__(self) -> Iterator[Entry]:
        return chain.from_iterable(self._queues)

    @property
    def _queues(self) -> tuple[OrderedDict[Entry, None], ...]:
        """The queues, in the order in which they are emptied."""
        return self._batch, self._others, self._pinned

    @property
    def batch_class(self) -> Set[Entry]:
        """Those that only batch sequences read, without pinned ones."""
        return self._batch.keys()

    def is_pinned(self, entry: Entry) -> bool:
        """True where it is here and pinned."""
        return entry in self._pinned

    def release(
        self,
        model: str,
        columns: Sequence[int],
        holders: Sequence[int | None],
        was_left: Sequence[bool],
        pinned: frozenset[int] = frozenset(),
    ) -> None:
        """Add `columns` that were released in this order; holders[i] publishes the i-th one's key.

        was_left[i]: an interactive sequence held that column. Those that hold their own key are
        added; other holders are renewed where they are here.
        """
        for column, holder, is_left in zip(columns, holders, was_left, strict=True):
            if holder == column:
                if column in pinned:
                    self._add_pinned((model, column))
                else:
                    self._queue(is_left)[model, column] = None
            elif holder is not None:
                self._renew((model, holder), is_left)

    def _queue(self, is_left: bool) -> OrderedDict[Entry, None]:
        return self._others if is_left else self._batch

    def _renew(self, entry: Entry, is_left: bool) -> None:
        if is_left and entry in self._batch:
            del self._batch[entry]
            self._others[entry] = None
        for queue in self._queues:
            if entry in queue:
                queue.move_to_end(entry)

    def remove(self, entries: Iterable[Entry]) -> None:
        """Remove `entries`, which are all here and got a reader again."""
        for entry in entries:
            if entry in self._pinned:
                self._forget_pinned(entry)
            else:
                self._take(entry)

    def _take(self, entry: Entry) -> None:
        del (self._batch if entry in self._batch else self._others)[entry]

    def pin(self, model: str, columns: Sequence[int]) -> None:
        """Pin `columns` (all here, deepest first): they are evicted after all others."""
        for column in columns:
            entry = model, column
            if entry in self._pinned:
                self._pinned.move_to_end(entry)
            else:
                self._take(entry)
                self._add_pinned(entry)

    def unpin(self, model: str, columns: Sequence[int], was_left: Sequence[bool]) -> None:
        """Unpin `columns` (pinned, deepest first), as if they had been released just now."""
        for column, is_left in zip(columns, was_left, strict=True):
            self._forget_pinned((model, column))
            self._queue(is_left)[model, column] = None

    def take(self, blocks: int, sizes: Mapping[str, int]) -> dict[str, list[int]]:
        """Remove entries until they hold `blocks` blocks; return the columns of each kind.

        sizes: blocks of a column. Raises AssertionError where there are fewer blocks.
        """
        taken: dict[str, list[int]] = {}
        for entries in self._queues:
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
    keys: tuple[bytes, ...]

    @property
    def entries(self) -> list[tuple[str, bytes]]:
        return [(self.kv.name, key) for key in self.keys]


class Pins:
    """Prefixes that requests to come will need, by pin id; a block in any of them is pinned.

    A pin only delays eviction: its blocks may not be computed yet, and sequences that are short of
    blocks still get them. Chains begin at the root, so ancestors of a pinned column are pinned too.
    """

    def __init__(self, models: Mapping[str, Sequence[ModelKv]], order: EvictionOrder) -> None:
        """models: the kinds of layers of each model."""
        self._models = models
        self._kinds = {kv.name: kv for kinds in models.values() for kv in kinds}
        self._order = order
        self._pins: dict[str, list[_Pin]] = {}
        self._counts: Counter[tuple[str, bytes]] = Counter()  # by kind of layers and key

    @property
    def idle_blocks(self) -> int:
        """Unread pinned blocks in the cache."""
        counts = self._order.num_pinned.items()
        return sum(self._kinds[name].columns.blocks_per_column * count for name, count in counts)

    def add(self, pin_id: str, model: str, hashes: Sequence[bytes]) -> None:
        """Pin the blocks of the chain `hashes`, instead of what the same id had pinned.

        Of layers with a window, those that the token after it sees.
        """
        self.remove(pin_id)
        pins = self._pins[pin_id] = [
            _Pin(kv, tuple(hashes[kv.first_seen(len(hashes)) :])) for kv in self._models[model]
        ]
        for pin in pins:
            self._counts.update(pin.entries)
            self._order.pin(pin.kv.name, self._unread(pin.kv, pin.keys))

    def remove(self, pin_id: str) -> None:
        """Remove the pin; an unknown one is ignored."""
        for pin in self._pins.pop(pin_id, ()):
            self._counts.subtract(pin.entries)
            freed = [key for name, key in pin.entries if not self._counts[name, key]]
            for key in freed:
                del self._counts[pin.kv.name, key]
            unread = self._unread(pin.kv, freed)
            self._order.unpin(pin.kv.name, unread, pin.kv.columns.was_left[unread].tolist())

    def among(self, kv: ModelKv, columns: Sequence[int]) -> frozenset[int]:
        """Return those of `columns` that are pinned."""
        if not self._counts:
            return frozenset()
        keys = zip(columns, kv.prefix.keys(columns), strict=True)
        name = kv.name
        return frozenset(
            column for column, key in keys if key is not None and (name, key) in self._counts
        )

    def _unread(self, kv: ModelKv, keys: Sequence[bytes]) -> list[int]:
        """Return the unread cached columns that hold `keys`, deepest first."""
        columns = kv.prefix.holders(keys)
        refs = kv.columns.refs
        return [column for column in reversed(columns) if refs[column] == 0]

    def check(self) -> None:
        """Raise AssertionError where other columns than pinned ones are in the pinned queue."""
        keys = [entry for pins in self._pins.values() for pin in pins for entry in pin.entries]
        assert self._counts == Counter(keys), "pins are miscounted"
        found = Counter[str]()
        for name, column in self._order:
            is_pinned = column in self.among(self._kinds[name], (column,))
            assert is_pinned == self._order.is_pinned((name, column)), "pinned in the wrong queue"
            found[name] += is_pinned
        assert +found == +self._order.num_pinned, "pinned columns are miscounted"


class CachedColumns:
    """Gives columns readers and takes them away; keeps and evicts unread ones, of all models."""

    def __init__(
        self,
        pool: BlockPool,
        ledger: BlockLedger,
        models: Mapping[str, Sequence[ModelKv]],
        *,
        is_bidirectional: bool,
    ) -> None:
        """models: the kinds of layers of each. is_bidirectional: blocks that only batch sequences
        read are counted apart."""
        self._pool, self._ledger = pool, ledger
        self._kinds = {kv.name: kv for kinds in models.values() for kv in kinds}
        self._is_bidirectional = is_bidirectional
        self.order = EvictionOrder()
        self.pins = Pins(models, self.order)

    def affordable(self, kv: ModelKv, columns: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the first of `columns` (int32 [n]) that the quota lets a sequence of it read."""
        quota_left = self._ledger.quota_left(kv.model.name)
        return columns[: self._costs(kv, columns).searchsorted(quota_left, side="right")]

    def cost(self, kv: ModelKv, columns: NDArray[np.int32]) -> int:
        """Return the blocks that a sequence which reads `columns` (int32 [n]) is charged for."""
        costs = self._costs(kv, columns)
        return int(costs[-1]) if len(costs) else 0

    def _costs(self, kv: ModelKv, columns: NDArray[np.int32]) -> NDArray[np.intp]:
        """Return what the first, the first two, ... of `columns` cost, [n]."""
        store = kv.columns
        refs = store.left_refs if self._is_bidirectional else store.refs
        costs: NDArray[np.intp] = np.cumsum(refs[columns] == 0) * store.blocks_per_column
        return costs

    def attach(self, kv: ModelKv, columns: NDArray[np.int32], owner: int) -> None:
        """Give published `columns` (int32 [n]) a reader of the side `owner`.

        What an interactive sequence reads is charged to that class.
        """
        store, name = kv.columns, kv.model.name
        is_unread = store.refs[columns] == 0
        unread = columns[is_unread]
        # read by batch sequences alone until now
        joined = ~is_unread & (store.left_refs[columns] == 0) & (owner == LEFT)
        store.attach(columns, owner)
        self.order.remove((kv.name, column) for column in unread.tolist())
        self._ledger.revive(
            name, len(unread) * store.blocks_per_column, is_batch=self._is_apart(owner)
        )
        self._turn(kv, unread[store.owners[unread] != owner], owner)
        self._recharge(kv, columns[joined], owner)

    def detach(self, kv: ModelKv, columns: NDArray[np.int32], owner: int) -> None:
        """Take a reader of the side `owner` from `columns` (int32 [n], in order); it holds no more.

        Unread ones are kept or freed; what only batch sequences go on reading is charged to these.
        """
        is_unread = kv.columns.detach(columns, owner)
        # Deepest first: see EvictionOrder.
        self._retire(kv, columns[is_unread][::-1], is_batch=self._is_apart(owner))
        if owner == LEFT:
            others = columns[~is_unread]
            self._recharge(kv, others[kv.columns.left_refs[others] == 0], RIGHT)

    def _is_apart(self, owner: int) -> bool:
        """True where blocks of that side alone are counted apart, without a quota."""
        return self._is_bidirectional and owner == RIGHT

    def _recharge(self, kv: ModelKv, columns: NDArray[np.int32], owner: int) -> None:
        """Charge `columns` (int32 [n]), which have readers, to the class of the other side."""
        if len(columns) == 0:
            return
        self._turn(kv, columns, owner)
        if self._is_bidirectional:
            blocks = len(columns) * kv.columns.blocks_per_column
            self._ledger.recharge(kv.model.name, blocks, is_batch=owner == RIGHT)

    def _turn(self, kv: ModelKv, columns: NDArray[np.int32], owner: int) -> None:
        """Make the side `owner` the owner of `columns` (int32 [n]) of the other side."""
        if len(columns):
            self._pool.turn(kv.columns.blocks[columns].ravel(), owner)
            kv.columns.owners[columns] = owner

    def _retire(self, kv: ModelKv, columns: NDArray[np.int32], *, is_batch: bool) -> None:
        """Keep or free `columns` (int32 [n], deepest first), whose last reader left."""
        leaving, name, store = columns.tolist(), kv.model.name, kv.columns
        holders = kv.prefix.retire(leaving)
        was_left = store.was_left[columns].tolist()
        for holder, is_left in zip(holders, was_left, strict=True):
            if holder is not None and is_left:  # it stands for what an interactive sequence held
                store.was_left[holder] = True
        self.order.release(kv.name, leaving, holders, was_left, self.pins.among(kv, leaving))
        is_freed = [holder != column for column, holder in zip(leaving, holders, strict=True)]
        freed = columns[np.array(is_freed, dtype=np.bool_)]
        if len(freed):
            self._free(kv, freed)
        self._ledger.give(name, len(freed) * store.blocks_per_column, is_batch=is_batch)
        num_kept = len(columns) - len(freed)
        self._ledger.cache(name, num_kept * store.blocks_per_column, is_batch=is_batch)

    def make_room(self, blocks: int) -> None:
        """Evict until `blocks` blocks are free or nothing is left to evict."""
        missing = blocks - self._ledger.free
        if missing > 0:
            self.evict(min(missing, self._ledger.evictable))

    def evict(self, blocks: int) -> None:
        """Free at least `blocks` blocks of cached columns."""
        sizes = {name: kv.columns.blocks_per_column for name, kv in self._kinds.items()}
        for name, columns in self.order.take(blocks, sizes).items():
            kv = self._kinds[name]
            ids = np.array(columns, dtype=np.int32)
            kv.prefix.forget(columns)
            self._free(kv, ids)
            self._ledger.evict(kv.model.name, len(columns) * kv.columns.blocks_per_column)

    def _free(self, kv: ModelKv, columns: NDArray[np.int32]) -> None:
        self._pool.release(*kv.columns.remove(columns))
