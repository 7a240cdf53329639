"""Prefixes that requests to come will need: cached columns of them are evicted after all others."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from muxcluster.core.job import Side
from muxcluster.kvcache.eviction import EvictionOrder
from muxcluster.kvcache.model_kv import ModelKv
from muxcluster.kvcache.pool import OWNER_BIT


class _Pin(NamedTuple):
    kv: ModelKv
    owner: int
    keys: tuple[bytes, ...]


class Pins:
    """Pinned chains of one cache. A block stays pinned while one of the chains holds its key.

    A pin reserves nothing: its blocks may not be computed yet, and whoever is short of blocks still
    gets them. Chains begin at the root, so an ancestor of a pinned column is pinned, too.
    """

    def __init__(self, models: Mapping[str, ModelKv], order: EvictionOrder) -> None:
        self._models = models
        self._order = order
        self._pins: dict[str, _Pin] = {}
        self._counts = {owner: Counter[bytes]() for owner in OWNER_BIT.values()}

    @property
    def idle_blocks(self) -> int:
        """Pinned blocks in the cache that nobody reads."""
        counts = self._order.num_pinned.items()
        return sum(self._models[name].columns.blocks_per_column * count for name, count in counts)

    def add(self, pin_id: str, model: str, hashes: Sequence[bytes], side: Side) -> None:
        """Pin the blocks of the chain `hashes`; what the same id had pinned is not any more."""
        self.remove(pin_id)
        pin = self._pins[pin_id] = _Pin(self._models[model], OWNER_BIT[side], tuple(hashes))
        self._counts[pin.owner].update(pin.keys)
        self._order.pin(model, self._unread(pin, pin.keys), pin.owner)

    def remove(self, pin_id: str) -> None:
        """Free the pin; an unknown one is ignored."""
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
        """Those of `columns`, which are of one side, that are pinned."""
        counts = self._counts[owner]
        if not counts:
            return frozenset()
        keys = zip(columns, kv.prefix.keys(columns), strict=True)
        return frozenset(column for column, key in keys if key in counts)

    def _unread(self, pin: _Pin, keys: Sequence[bytes]) -> list[int]:
        """Cached columns that hold `keys` and have no reader, deepest first."""
        columns = pin.kv.prefix.holders(keys, pin.owner)
        refs = pin.kv.columns.refs
        return [column for column in reversed(columns) if refs[column] == 0]

    def check(self) -> None:
        """Raise AssertionError where other columns than the pinned ones are evicted last."""
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
