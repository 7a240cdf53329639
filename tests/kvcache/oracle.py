"""A plain model of the KV cache in dicts and lists, and a pair that runs both side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from muxcluster.core.hashing import extend_hashes, root_hash
from muxcluster.core.job import Side, TableDelta
from muxcluster.core.kvshape import KvShape, block_bytes
from muxcluster.kvcache.cache import KvCache
from muxcluster.kvcache.model import KvModel
from muxcluster.kvcache.pool import Shortage
from tests.blocks import block_tokens

BLOCK = block_tokens(16)
BLOCK_BYTES = block_bytes(BLOCK, 4)

MODELS = (
    KvModel("wide", KvShape(2, 2, 128, 4), max_seqs=6, max_model_len=100 * BLOCK // 16),
    KvModel("narrow", KvShape(3, 1, 64, 4), max_seqs=5, max_model_len=150 * BLOCK // 16),
    KvModel(
        "uncached",
        KvShape(1, 5, 64, 4),
        max_seqs=4,
        max_model_len=4 * BLOCK,
        prefix_caching=False,
    ),
)


def chain(model: str, path: Sequence[int], block_tokens: int, salt: str = "") -> list[bytes]:
    """Hashes of a prompt whose i-th block repeats the token path[i]."""
    tokens = np.repeat(np.array(path, dtype=np.int32), block_tokens)
    return list(extend_hashes(root_hash(model, salt), tokens, block_tokens))


@dataclass(eq=False)
class Column:
    model: str
    is_interactive: bool  # a left sequence has held it
    key: bytes | None = None
    readers: int = 0
    released: int = 0


@dataclass
class Sequence_:
    side: Side
    hashes: list[bytes]
    columns: list[Column] = field(default_factory=list)
    committed: int = 0


class Oracle:
    """Says what every call must answer, one column object at a time."""

    def __init__(self, num_blocks: int, quotas: Mapping[str, int]) -> None:
        self.num_blocks = num_blocks
        self.models = {model.name: model for model in MODELS}
        self.quotas = dict(quotas)
        self.sequences: dict[tuple[str, int], Sequence_] = {}
        self.published: dict[tuple[str, bytes], Column] = {}
        self.cached: list[Column] = []
        self.pins: dict[str, tuple[str, list[bytes]]] = {}
        self.clock = 0

    def per_column(self, model: str) -> int:
        return self.models[model].shape.blocks_per_column

    def block_tokens(self, model: str) -> int:
        shape = self.models[model].shape
        return BLOCK_BYTES // (2 * shape.head_dim * shape.itemsize)

    def used(self, model: str) -> int:
        live = {id(c) for (m, _), s in self.sequences.items() if m == model for c in s.columns}
        return len(live) * self.per_column(model)

    def cached_blocks(self, model: str) -> int:
        return sum(self.per_column(model) for c in self.cached if c.model == model)

    @property
    def evictable(self) -> int:
        return sum(self.per_column(c.model) for c in self.cached)

    @property
    def free(self) -> int:
        return self.num_blocks - self.evictable - sum(self.used(m) for m in self.models)

    def open(self, model: str, row: int, hashes: list[bytes], side: Side) -> int:
        sequence = self.sequences[model, row] = Sequence_(side, hashes)
        for key in hashes:
            column = self.published.get((model, key))
            if column is None:
                break
            new = 0 if column.readers else self.per_column(model)
            if new and self.used(model) + new > self.quotas[model]:
                break
            if new:
                self.cached.remove(column)
            column.readers += 1
            column.is_interactive |= side is Side.LEFT
            sequence.columns.append(column)
        sequence.committed = len(sequence.columns)
        return sequence.committed * self.block_tokens(model)

    def grow(self, model: str, wanted: Mapping[int, int]) -> int | Shortage:
        per_column, width = self.per_column(model), self.block_tokens(model)
        missing = {
            row: max(0, -(-tokens // width) - len(self.sequences[model, row].columns))
            for row, tokens in wanted.items()
        }
        blocks = sum(missing.values()) * per_column
        if blocks == 0:
            return 0
        over_quota = blocks - max(0, self.quotas[model] - self.used(model))
        over_pool = blocks - self.free - self.evictable
        if over_quota > 0 or over_pool > 0:
            return Shortage(max(over_quota, over_pool), over_quota > 0)
        while self.free < blocks:
            self.evict()
        for row, count in missing.items():
            sequence = self.sequences[model, row]
            is_left = sequence.side is Side.LEFT
            sequence.columns += [Column(model, is_left, readers=1) for _ in range(count)]
        return sum(missing.values())

    def evict(self) -> None:
        pinned = self.pinned()

        def turn(column: Column) -> tuple[int, int]:
            if (column.model, column.key) in pinned:
                return 2, column.released
            return int(column.is_interactive), column.released

        victim = min(self.cached, key=turn)
        self.cached.remove(victim)
        assert victim.key is not None
        del self.published[victim.model, victim.key]

    def commit(self, model: str, row: int, count: int) -> None:
        sequence = self.sequences[model, row]
        for i in range(sequence.committed, sequence.committed + count):
            if self.models[model].prefix_caching:
                key = sequence.columns[i].key = sequence.hashes[i]
                self.published.setdefault((model, key), sequence.columns[i])
        sequence.committed += count

    def close(self, model: str, row: int) -> None:
        sequence = self.sequences.pop((model, row))
        for column in reversed(sequence.columns):
            column.readers -= 1
            if column.readers or column.key is None:
                continue
            self.clock += 1
            holder = self.published.setdefault((model, column.key), column)
            holder.is_interactive |= column.is_interactive
            if holder is column:
                self.cached.append(column)
            if not holder.readers:
                holder.released = self.clock

    def drop_cache(self) -> None:
        while self.cached:
            self.evict()

    def pinned(self) -> set[tuple[str, bytes]]:
        return {(model, key) for model, keys in self.pins.values() for key in keys}

    def pin(self, pin_id: str, model: str, hashes: list[bytes]) -> None:
        self.unpin(pin_id)
        self.pins[pin_id] = model, hashes
        self._renew(model, hashes)

    def unpin(self, pin_id: str) -> None:
        if pin_id in self.pins:
            model, hashes = self.pins.pop(pin_id)
            pinned = self.pinned()
            self._renew(model, [key for key in hashes if (model, key) not in pinned])

    def _renew(self, model: str, hashes: list[bytes]) -> None:
        for key in reversed(hashes):
            column = self.published.get((model, key))
            if column is not None and not column.readers:
                self.clock += 1
                column.released = self.clock


class Pair:
    """The cache and its oracle under the same operations, with a device memory they address."""

    def __init__(self, num_blocks: int = 60) -> None:
        quotas = {"wide": 36, "narrow": 30, "uncached": 20}
        self.cache = KvCache(num_blocks, BLOCK_BYTES, MODELS, quotas)
        self.oracle = Oracle(num_blocks, quotas)
        self.memory: dict[int, object] = {}
        self.tables: dict[tuple[str, int, int], tuple[int, ...]] = {}

    def open(self, model: str, row: int, path: Sequence[int], salt: str, side: Side) -> None:
        hashes = chain(model, path, self.cache.of(model).block_tokens, salt)
        attached = self.cache.of(model).open(row, hashes, side)
        assert attached == self.oracle.open(model, row, hashes, side)
        self._apply(model, self.cache.of(model).tables(np.array([row], dtype=np.int32)))

    def grow(self, model: str, wanted: Mapping[int, int]) -> None:
        rows = np.array(list(wanted), dtype=np.int32)
        answer = self.cache.of(model).grow(rows, np.array(list(wanted.values()), dtype=np.int32))
        expected = self.oracle.grow(model, wanted)
        if isinstance(answer, Shortage):
            assert answer == expected
            return
        assert len(answer) == expected
        self._apply(model, answer)
        self.memory.update(dict.fromkeys(answer.blocks.ravel().tolist()))

    def commit(self, model: str, row: int, count: int) -> None:
        sequence = self.oracle.sequences[model, row]
        start = sequence.committed
        hashes = sequence.hashes[start : start + count]
        for i, key in enumerate(hashes, start):
            for block in self.tables[model, row, i]:
                self.memory[block] = key
        self.cache.of(model).commit(row, hashes)
        self.oracle.commit(model, row, len(hashes))

    def close(self, model: str, row: int) -> None:
        self.cache.of(model).close(row)
        self.oracle.close(model, row)

    def set_quota(self, model: str, quota: int) -> None:
        self.cache.set_quotas({model: quota})
        self.oracle.quotas[model] = quota

    def pin(self, pin_id: str, model: str, path: Sequence[int], salt: str) -> None:
        hashes = chain(model, path, self.cache.of(model).block_tokens, salt)
        self.cache.pins.add(pin_id, model, hashes)
        self.oracle.pin(pin_id, model, hashes)

    def unpin(self, pin_id: str) -> None:
        self.cache.pins.remove(pin_id)
        self.oracle.unpin(pin_id)

    def drop_cache(self) -> None:
        self.cache.drop_cache()
        self.oracle.drop_cache()

    def _apply(self, model: str, delta: TableDelta) -> None:
        entries = zip(
            delta.rows.tolist(), delta.columns.tolist(), delta.blocks.tolist(), strict=True
        )
        for row, position, blocks in entries:
            self.tables[model, row, position] = tuple(blocks)

    def check(self) -> None:
        """Compare every number, and every committed column's content in the device memory."""
        cache, oracle = self.cache, self.oracle
        cache.check()
        assert (cache.free, cache.evictable) == (oracle.free, oracle.evictable)
        pinned = oracle.pinned()
        idle = [c for c in oracle.cached if (c.model, c.key) in pinned]
        assert cache.pins.idle_blocks == sum(oracle.per_column(c.model) for c in idle)
        for name in oracle.models:
            used, cached = oracle.used(name), oracle.cached_blocks(name)
            assert (cache.of(name).used, cache.of(name).num_cached) == (used, cached)
            left = max(0, oracle.quotas[name] - used)
            assert cache.of(name).headroom() == min(left, oracle.free + oracle.evictable)
        for (name, row), sequence in oracle.sequences.items():
            width = oracle.block_tokens(name)
            assert cache.of(name).capacity[row] == len(sequence.columns) * width
            assert cache.of(name).num_committed[row] == sequence.committed * width
            for i, key in enumerate(sequence.hashes[: sequence.committed]):
                blocks = self.tables[name, row, i]
                assert {self.memory[block] for block in blocks} == {key}
