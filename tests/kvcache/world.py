"""A KV cache, the memory it addresses, and jobs that run in it, overlap and fail.

The oracle is the data: tokens are unique numbers, and whatever the cache decides, a sequence that
is whole must find its own numbers through its tables.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from muxcluster.core.hashing import extend_hashes, root_hash
from muxcluster.core.job import Side, SlotCopies, TableDelta
from muxcluster.kvcache.cache import KvCache
from muxcluster.kvcache.model import KvModel
from muxcluster.kvcache.pool import Shortage
from tests.kvcache.memory_world import BLOCK_BYTES, ODD, WIDE, Layout, Memory, copy_slots

MODELS = {model.name: model for model in (WIDE, ODD)}
Key = tuple[str, int]


@cache
def _layout(model: KvModel) -> Layout:
    return Layout.of(model)


@dataclass
class Text:
    """A live sequence. job: the one it runs in.

    attached: the sides from which its first columns were filled, which others computed.
    """

    side: Side
    hashes: list[bytes]
    # As each kind of layers has them; layers with a window may have read a column that was computed
    # by another sequence than that of the others. 0: the window had left them behind.
    by_kind: list[list[int]]
    job: int | None = None
    attached: list[Side] = field(default_factory=list)
    # Of a model with states, the number that fills its state columns; 0: any, as before its first
    # job, or when one that failed may have written a part.
    state: int = 0

    @property
    def tokens(self) -> list[int]:
        """The numbers computed so far."""
        return self.by_kind[0]

    def side_of(self, column: int) -> Side:
        return self.attached[column] if column < len(self.attached) else self.side


@dataclass
class Run:
    """A job on its way. stage: what it did: nothing, saves, other copies, writes."""

    job_id: int
    model: str
    writes: dict[int, list[int]]
    states: dict[int, int]
    copies: list[SlotCopies]
    tables: dict[int, dict[int, np.ndarray]]
    stage: int = 0


@dataclass
class World:
    """Every call to the cache goes through here, and every copy and write it asks for is made."""

    cache: KvCache
    memory: Memory
    draw: random.Random
    models: Mapping[str, KvModel] = field(default_factory=lambda: MODELS)
    texts: dict[Key, Text] = field(default_factory=dict)
    runs: dict[int, Run] = field(default_factory=dict)
    tables: dict[Key, dict[int, np.ndarray]] = field(default_factory=dict)
    published: dict[tuple[bytes, int], set[tuple[Side, tuple[int, ...]]]] = field(
        default_factory=dict
    )
    restoring: set[Key] = field(default_factory=set)
    last: int = 0
    num_across: int = 0  # columns that a sequence read and one of the other side computed

    @classmethod
    def build(
        cls,
        seed: int,
        num_blocks: int,
        num_host_blocks: int,
        quotas: Mapping[str, int],
        *,
        saves_lazily: bool = True,
        models: Mapping[str, KvModel] = MODELS,
    ) -> "World":
        cache = KvCache(
            num_blocks,
            BLOCK_BYTES,
            tuple(models.values()),
            quotas,
            num_host_blocks=num_host_blocks,
            is_bidirectional=True,
            saves_lazily=saves_lazily,
        )
        memory = Memory(num_blocks, num_host_blocks)
        return cls(cache, memory, random.Random(seed), models)

    def layout(self, model: str) -> Layout:
        return _layout(self.models[model])

    def next(self) -> int:
        """A number never used before: a token, or a job's id."""
        self.last += 1
        return self.last

    def open(self, model: str, row: int, path: list[int], side: Side) -> None:
        """Begin a sequence whose i-th block repeats path[i]; attached columns bring tokens."""
        layout = self.layout(model)
        tokens = np.repeat(np.array(path, dtype=np.int32), layout.block_tokens)
        # Where a token may see a part of a block, its order counts: see `ModelSpec.is_unordered`.
        salt = str(side) if self.models[model].window else ""
        hashes = list(extend_hashes(root_hash(model, salt), tokens, layout.block_tokens))
        attached = self.cache.of(model).open(row, hashes, side)
        text = Text(side, hashes, [[] for _ in layout.kinds])
        self.texts[model, row] = text
        self.tables[model, row] = {}
        self._apply(model, self.cache.of(model).tables(np.array([row], dtype=np.int32)))
        for i in range(attached // layout.block_tokens):
            text.attached.append(side)
            for kind, (_, window) in enumerate(layout.kinds):
                if i < layout.first_seen(attached, window):
                    text.by_kind[kind] += [0] * layout.block_tokens
                else:
                    text.attached[i] = self._read_cached(model, row, i, kind)
            self.num_across += text.attached[i] is not side

    def _read_cached(self, model: str, row: int, column: int, kind: int) -> Side:
        """The sequence has found a cached column; the side from which it was filled."""
        text, layout = self.texts[model, row], self.layout(model)
        blocks, cells = self.tables[model, row][column], layout.kinds[kind][0]
        known = self.published[text.hashes[column], kind]
        found = {each: self.memory.column(blocks, layout, each, cells) for each in Side}
        filled = [side for side in Side if (side, tuple(found[side])) in known]
        assert len(filled) == 1, "a cached column was damaged"
        text.by_kind[kind] += found[filled[0]]
        return filled[0]

    def grow(self, model: str, wanted: Mapping[int, int]) -> bool:
        """Room for so many tokens in these rows; False where blocks are short."""
        rows = np.array(list(wanted), dtype=np.int32)
        grown = self.cache.of(model).grow(rows, np.array(list(wanted.values()), dtype=np.int32))
        if isinstance(grown, Shortage):
            return False
        self._apply(model, grown)
        return True

    def lend(self, model: str, row: int, blocks: int) -> int:
        promised = self.cache.of(model).lending.lendable(row)
        before = self.cache.lent + self.cache.free
        lent = self.cache.of(model).lending.lend(row, len(self.texts[model, row].tokens), blocks)
        assert self.cache.lent + self.cache.free == before + lent
        assert lent >= min(promised, blocks)
        return lent

    def swap_out(
        self, lenders: list[Key], blocks: int, job_id: int
    ) -> tuple[SlotCopies, ...] | None:
        """So many more blocks are free, for that job; None where the lenders have not as many."""
        untaken = {
            (model, row): self.cache.of(model).lending.untaken(row) for model, row in lenders
        }
        if sum(untaken.values()) < blocks:
            return None
        free, copies = self.cache.free + blocks, []
        for (model, row), count in untaken.items():
            if taken := min(blocks, count):
                kv = self.cache.of(model).lending
                copies.append(kv.swap_out(row, taken, job_id))
                assert kv.untaken(row) == count - taken
                blocks -= taken
        assert self.cache.free == free
        return tuple(copies)

    def restore(self, model: str, rows: list[int], job_id: int) -> SlotCopies | Shortage:
        """Lent rows get their blocks back with a job."""
        restored = self.cache.of(model).lending.restore(np.array(rows, dtype=np.int32), job_id)
        if isinstance(restored, Shortage):
            return restored
        delta, copies = restored
        self._apply(model, delta)
        self.restoring |= {(model, row) for row in rows}
        return copies

    def launch(self, job_id: int, model: str, counts: Mapping[int, int], copies) -> None:
        """Send a job that writes counts[row] more tokens; its rows have room."""
        writes = {row: [self.next() for _ in range(n)] for row, n in counts.items()}
        states = {row: self.next() for row in counts if self.models[model].state_columns}
        tables = {row: dict(self.tables[model, row]) for row in counts}
        self.runs[job_id] = Run(job_id, model, writes, states, list(copies), tables)
        for row in counts:
            self.texts[model, row].job = job_id

    def advance(self, job_id: int, share: float = 1.0) -> None:
        """The job's next stage happens, or a random share of it."""
        run = self.runs[job_id]
        stages = (self._save, self._copy, self._write)
        if run.stage < len(stages):
            stages[run.stage](run, share)
            run.stage += 1

    def _some(self, runs: np.ndarray, share: float) -> np.ndarray:
        return runs[[self.draw.random() < share for _ in range(len(runs))]]

    def _save(self, run: Run, share: float) -> None:
        memory = self.memory
        for copies in run.copies:
            some = self._some(copies.saves, share)
            copy_slots(memory.pool, memory.host, self.layout(copies.model), some)

    def _copy(self, run: Run, share: float) -> None:
        memory = self.memory
        for copies in run.copies:
            layout = self.layout(copies.model)
            copy_slots(memory.pool, memory.pool, layout, self._some(copies.moves, share))
            copy_slots(memory.host, memory.pool, layout, self._some(copies.restores, share))

    def _write(self, run: Run, share: float) -> None:
        layout, behind = self.layout(run.model), self.models[run.model].state_columns
        for row, tokens in run.writes.items():
            text, table = self.texts[run.model, row], run.tables[row]
            self._check_text(run.model, row, table)
            for position, token in enumerate(tokens, len(text.tokens)):
                if self.draw.random() < share:
                    blocks = table[behind + position // layout.block_tokens]
                    self.memory.write(blocks, layout.at(position, text.side), token)
            for column in range(behind if tokens else 0):
                text.state = 0  # until the job has ended
                if self.draw.random() < share:
                    for place in range(layout.block_tokens):
                        self.memory.write(table[column], layout.units_at(place), run.states[row])

    def end(self, job_id: int, *, succeeded: bool) -> None:
        """The job ends; one that failed may have done a part of its next stage."""
        if not succeeded:
            self.advance(job_id, share=self.draw.random())
        run = self.runs.pop(job_id)
        lost = self.cache.end_copies(job_id, succeeded)
        assert not (succeeded and lost)
        for row, tokens in run.writes.items():
            text = self.texts[run.model, row]
            text.job = None
            self.restoring.discard((run.model, row))
            if succeeded:
                if tokens and self.models[run.model].state_columns:
                    text.state = run.states[row]
                for numbers in text.by_kind:
                    numbers += tokens
                self._commit(run.model, row)
                self.cache.of(run.model).give_back(
                    np.array([row], dtype=np.int32), np.array([len(text.tokens)], dtype=np.int32)
                )
        for model, row in lost:
            assert not self.cache.of(model).lending.can_restore(row)
            self.close(model, row)

    def _commit(self, model: str, row: int) -> None:
        text, width = self.texts[model, row], self.layout(model).block_tokens
        start = int(self.cache.of(model).num_committed[row]) // width
        hashes = text.hashes[start : len(text.tokens) // width]
        for i, key in enumerate(hashes, start):
            for kind, numbers in enumerate(text.by_kind):
                values = tuple(numbers[i * width : (i + 1) * width])
                self.published.setdefault((key, kind), set()).add((text.side_of(i), values))
        self.cache.of(model).commit(row, hashes)

    def close(self, model: str, row: int) -> None:
        text = self.texts.pop((model, row))
        assert text.job is None, "a sequence in a running job is closed"
        del self.tables[model, row]
        self.restoring.discard((model, row))
        self.cache.of(model).close(row)

    def reset(self) -> None:
        """The owner of the memory died: nothing of it is left."""
        self.cache.reset_copies()
        self.runs.clear()
        for key, text in list(self.texts.items()):
            text.job = None
            self.close(*key)
        self.cache.drop_cache()
        self.memory.pool[:] = self.memory.host[:] = -1

    def _apply(self, model: str, delta: TableDelta) -> None:
        entries = zip(delta.rows.tolist(), delta.columns.tolist(), delta.blocks, strict=True)
        for row, position, blocks in entries:
            self.tables[model, row][position] = blocks.copy()

    def _check_text(self, model: str, row: int, table: Mapping[int, np.ndarray]) -> None:
        layout, text = self.layout(model), self.texts[model, row]
        width, behind = layout.block_tokens, self.models[model].state_columns
        for numbers, (cells, window) in zip(text.by_kind, layout.kinds, strict=True):
            first = layout.first_seen(len(numbers), window) * width
            for start in range(first, len(numbers), width):
                tokens, column = numbers[start : start + width], start // width
                side = text.side_of(column)
                found = self.memory.column(table[behind + column], layout, side, cells)
                assert found[: len(tokens)] == tokens, f"{model} {row} lost tokens from {start} on"
            for column in range(behind if text.state else 0):
                found = self.memory.column(table[column], layout, text.side, cells)
                assert found == [text.state] * width, f"{model} {row} lost its states"

    def is_readable(self, key: Key) -> bool:
        """True where the tokens must be in place: whole, and no restore of it is on its way."""
        model, row = key
        job = self.texts[key].job
        if job is not None and key in self.restoring and self.runs[job].stage < 2:
            return False
        return self.cache.of(model).num_lent[row] == 0

    def check(self) -> None:
        """The cache's own invariants, and every token of every sequence that is whole."""
        self.cache.check()
        for model, row in self.texts:
            if self.is_readable((model, row)):
                self._check_text(model, row, self.tables[model, row])
                self._check_tables(model, row)

    def _check_tables(self, model: str, row: int) -> None:
        """Whole tables have what the deltas had, but for what was given back."""
        layout, num_tokens = self.layout(model), len(self.texts[model, row].tokens)
        held = int(self.cache.of(model).capacity[row]) // layout.block_tokens
        held += self.models[model].state_columns if held else 0
        firsts = [layout.first_seen(num_tokens, window) for _, window in layout.kinds]
        whole = self.cache.of(model).tables(np.array([row], dtype=np.int32))
        assert whole.columns.tolist() == list(range(min(firsts), held))
        for i, blocks in zip(whole.columns.tolist(), whole.blocks, strict=True):
            for first, (cells, _) in zip(firsts, layout.kinds, strict=True):
                if i >= first:
                    places = list(cells)
                    assert (self.tables[model, row][i][places] == blocks[places]).all()
