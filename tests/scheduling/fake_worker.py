"""A fake memory and worker: checks that every token it attends to is where the job says.

Blocks hold fingerprints of (model, side, place in the column, position, token). A job that reads
a block before it was written, or one that another sequence overwrote, fails an assertion.
"""

import hashlib
import math
import zlib

import numpy as np

from muxcluster.core.job import Job, JobResult, Phase, Side, SlotCopies, TokenLogprobs
from muxcluster.core.padded import PaddedBatch
from muxcluster.core.unitspec import ModelSpec, UnitSpec

VOCAB = 50
EOS = 7


def token_of(request_id: str, index: int) -> int:
    """The output token `index` of a request: what every schedule must produce.

    Those of a request whose name begins with "loop" repeat themselves, but for every twentieth.
    """
    if request_id.startswith("loop") and index % 20:
        index %= 3
    digest = hashlib.blake2b(f"{request_id} {index}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % VOCAB


def num_forced(request_id: str, index: int) -> int:
    """How many tokens the constraint of a request forces behind its output token `index`."""
    digest = hashlib.blake2b(f"run {request_id} {index}".encode(), digest_size=4).digest()
    return (0, 0, 0, 1, 2, 7)[int.from_bytes(digest, "little") % 6]


def _seen(spec: ModelSpec, num_tokens: int) -> list[tuple[int, list[int]]]:
    """The first token that the one after `num_tokens` sees, and the blocks of a column where."""
    shape = spec.shape
    heads, windowed = range(shape.num_kv_heads), set(spec.window_layers)
    every = [layer for layer in range(shape.num_layers) for _ in heads]
    if not spec.is_positional:
        every = every[:-1]  # the last is for states
    full = [cell for cell, layer in enumerate(every) if layer not in windowed]
    others = [cell for cell, layer in enumerate(every) if layer in windowed]
    first = max(0, num_tokens + 1 - spec.window)
    return [each for each in ((0, full), (first, others)) if each[1]]


class _Sequence:
    def __init__(self, request_id: str, num_prompt: int, side: Side, tokens: list[int]) -> None:
        self.request_id = request_id
        self.num_prompt = num_prompt
        self.side = side
        self.tokens = tokens
        self.wants_prompt_logprobs = False
        self.is_constrained = False


class FakeMemory:
    """Pool, tables and histories of a unit, as its workers share them.

    padded_factor: memory of padded batches, over what is foretold of them.
    """

    def __init__(self, spec: UnitSpec, padded_factor: float = 1.0) -> None:
        self._padded_factor = padded_factor
        self._joins_forced = spec.joins_forced
        self._models = {m.name: (i, m) for i, m in enumerate(spec.models)}
        self._width = {m.name: m.shape.block_tokens(spec.block_bytes) for m in spec.models}
        # Models' slots differ in bytes, and lie over each other: memory is cells that divide all.
        slot_bytes = {m.name: m.shape.head_dim * m.shape.itemsize for m in spec.models}
        cell = math.gcd(*slot_bytes.values())
        self._cells = {name: length // cell for name, length in slot_bytes.items()}
        num_cells = max(self._width[name] * self._cells[name] for name in self._width)
        self._pool = np.zeros((spec.num_blocks, num_cells), dtype=np.int64)
        self._host = np.zeros((spec.num_host_blocks, num_cells), dtype=np.int64)
        self._tables: dict[tuple[str, int], dict[int, np.ndarray]] = {}
        self._sequences: dict[tuple[str, int], _Sequence] = {}

    def run(self, job: Job) -> JobResult:
        """Execute `job`, asserting that it is complete and consistent."""
        self._apply(job)
        rows = job.rows
        assert job.max_steps == 1 or job.phase is Phase.DECODE
        assert len(set(rows.table_rows.tolist())) == len(rows) > 0
        tokens: list[int] = []
        counts: list[int] = []
        prompt_logprobs = {}
        for row in range(len(rows)):
            key = job.model, int(rows.table_rows[row])
            start, count = int(rows.starts[row]), int(rows.counts[row])
            assert count > 0
            entries = self._prompt_logprobs(self._sequences[key], start, count)
            if entries:
                prompt_logprobs[row] = entries
            steps = job.max_steps if rows.samples[row] else 0
            drafts: list[int] = []
            if rows.drafts is not None:
                drafts = rows.drafts.of(slice(row, row + 1)).tokens.tolist()
            new = self._row(key, start, count, steps, drafts)
            if job.max_steps == steps == 1 and self._joins_forced:
                new += self._forced(self._sequences[key])
            tokens += new
            counts.append(len(new))
        return JobResult(
            job.job_id,
            np.array(tokens, dtype=np.int32),
            np.array(counts, dtype=np.int32),
            0.0,
            {},
            prompt_logprobs,
            self.padded(job),
        )

    def padded(self, job: Job) -> PaddedBatch | None:
        """The batch of the rows that go on from a token of the output, of a model that pads."""
        limit, rows = self._models[job.model][1].padded, job.rows
        found = [self._sequences.get((job.model, row)) for row in rows.table_rows.tolist()]
        prompts = np.array([math.inf if each is None else each.num_prompt for each in found])
        lengths = (rows.starts + rows.counts)[(rows.counts == 1) & (rows.starts >= prompts)]
        if limit is None or not len(lengths):
            return None
        num_rows, num_columns = len(lengths), int(lengths.max())
        foretold = limit.row_bytes.of(num_rows, num_columns)
        return PaddedBatch(num_rows, num_columns, int(self._padded_factor * foretold))

    def _forced(self, sequence: _Sequence) -> list[int]:
        """What must follow the token sampled last: known now, computed by the next job."""
        if not sequence.is_constrained:
            return []
        first = len(sequence.tokens) - sequence.num_prompt
        count = num_forced(sequence.request_id, first - 1)
        new = [token_of(sequence.request_id, first + place) for place in range(count)]
        sequence.tokens += new
        return new

    def _copy(self, job: Job) -> None:
        """All saves before any move or restore."""
        for copies in job.copies:
            self._run_copies(copies, copies.saves, self._pool, self._host)
        for copies in job.copies:
            self._run_copies(copies, copies.moves, self._pool, self._pool)
            self._run_copies(copies, copies.restores, self._host, self._pool)

    def _run_copies(
        self, copies: SlotCopies, runs: np.ndarray, source: np.ndarray, destination: np.ndarray
    ) -> None:
        width, cells = self._width[copies.model], self._cells[copies.model]
        assert (runs[:, 2] > 0).all()
        for first, to, count in runs.tolist():
            read, write = first + np.arange(count), to + np.arange(count)
            for cell in range(cells):
                places = (read % width) * cells + cell
                values = source[read // width, places].copy()
                destination[write // width, (write % width) * cells + cell] = values

    def _apply(self, job: Job) -> None:
        self._copy(job)
        for admission in job.admissions:
            key = job.model, admission.row
            sequence = _Sequence(
                admission.request_id,
                admission.num_prompt_tokens,
                admission.side,
                admission.tokens.tolist(),
            )
            sequence.wants_prompt_logprobs = admission.sampling.prompt_logprobs is not None
            sequence.is_constrained = admission.sampling.constraint is not None
            self._sequences[key] = sequence
            self._tables[key] = {}
        tables = job.tables
        for row, column, blocks in zip(
            tables.rows.tolist(), tables.columns.tolist(), tables.blocks, strict=True
        ):
            self._tables[job.model, row][column] = blocks.copy()

    def _row(
        self, key: tuple[str, int], start: int, count: int, steps: int, drafts: list[int]
    ) -> list[int]:
        sequence = self._sequences[key]
        num_known = len(sequence.tokens)
        assert not drafts or (steps == 1 and not sequence.is_constrained)
        assert len(drafts) < count and (not drafts or self._models[key[0]][1].is_positional)
        sequence.tokens += drafts
        assert start + count <= len(sequence.tokens), "tokens that nobody knows"
        assert (start + count == len(sequence.tokens)) == (steps > 0), "samples is wrong"
        new: list[int] = []
        self._read(key, start)
        self._touch_states(key, start, is_write=False)
        self._write(key, start, start + count)
        self._touch_states(key, start + count, is_write=True)
        del sequence.tokens[num_known:]  # the keys and values of drafts stay
        for step in range(steps):
            if step:
                end = len(sequence.tokens)
                self._write(key, end - 1, end)
                self._touch_states(key, end, is_write=True)
            index = len(sequence.tokens) - sequence.num_prompt
            sequence.tokens.append(token_of(sequence.request_id, index))
            new.append(sequence.tokens[-1])
        for draft in drafts:
            if draft != new[-1]:
                break
            index = len(sequence.tokens) - sequence.num_prompt
            sequence.tokens.append(token_of(sequence.request_id, index))
            new.append(sequence.tokens[-1])
        return new

    def _read(self, key: tuple[str, int], end: int) -> None:
        """Check those of the first `end` tokens that the next one sees.

        Others may have filled full columns from the other side, where the model takes their tokens
        in any order.
        """
        if end == 0:
            return
        name, side = key[0], self._sequences[key].side
        width, spec = self._width[name], self._models[name][1]
        for begin, cells in _seen(spec, end):
            is_there = self._is_there(key, begin, end, side, cells)
            if spec.is_unordered:
                assert begin == 0
                other = Side.LEFT if side is Side.RIGHT else Side.RIGHT
                full = end // width * width
                mirrored = self._is_there(key, 0, end, other, cells)
                is_whole = mirrored[:full].reshape(-1, width).all(axis=1)
                is_there[:full] |= is_whole.repeat(width)
            assert is_there.all(), f"KV of {key} was lost"

    def _is_there(
        self, key: tuple[str, int], begin: int, end: int, side: Side, cells: list[int]
    ) -> np.ndarray:
        """Where tokens begin to end are as a sequence of that side writes them, bool [end - begin].

        cells: blocks of a column to look at.
        """
        blocks, places, prints = self._prints(key, begin, end, side)
        blocks, prints = blocks[:, cells], prints[:, cells]
        parts = self._cells[key[0]]
        found = [self._pool[blocks, (places * parts + part)[:, None]] for part in range(parts)]
        return np.all([(each == prints).all(axis=1) for each in found], axis=0)

    def _write(self, key: tuple[str, int], start: int, end: int) -> None:
        blocks, places, prints = self._prints(key, start, end, self._sequences[key].side)
        cells = self._cells[key[0]]
        for cell in range(cells):
            self._pool[blocks, (places * cells + cell)[:, None]] = prints

    def _prints(
        self, key: tuple[str, int], start: int, end: int, side: Side
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Blocks [n, blocks of a column], places [n] and prints of tokens start to end."""
        name, _ = key
        sequence, width = self._sequences[key], self._width[name]
        positions = np.arange(start, end)
        table = self._tables[key]
        behind = self._models[name][1].state_columns
        blocks = np.stack([table[behind + p // width] for p in positions.tolist()])
        if not self._models[name][1].is_positional:
            blocks = blocks[:, :-1]  # the last is for states
        places = positions % width
        if side is Side.RIGHT:
            places = width - 1 - places
        tokens = np.array(sequence.tokens[start:end])
        index = self._models[name][0]
        prints = (tokens * 10_000 + positions)[:, None] * 100 + np.arange(blocks.shape[1])
        return blocks, places, (prints * 10 + index) * 10 + (1 if side is Side.RIGHT else 2)

    def _touch_states(self, key: tuple[str, int], num_tokens: int, *, is_write: bool) -> None:
        """What a model keeps beside tokens fills the last block of the first column.

        Or all blocks of its state columns. After a job that failed it may be of later tokens, which
        workers notice: they begin anew.
        """
        name, _ = key
        index, spec = self._models[name]
        if (spec.is_positional and not spec.state_columns) or not num_tokens:
            return
        table, sequence = self._tables[key], self._sequences[key]
        columns = [table[column] for column in range(spec.state_columns)]
        blocks = np.concatenate(columns) if columns else table[0][-1:]
        place = slice(0, self._width[name] * self._cells[name])
        label = zlib.crc32(f"{sequence.request_id} {index}".encode()) * 10_000
        if is_write:
            self._pool[blocks, place] = -(label + num_tokens)
            return
        found = np.unique(-self._pool[blocks, place] - label)
        is_known = len(found) == 1 and num_tokens <= found[0] <= len(sequence.tokens)
        assert is_known, f"states of {key} were lost"

    def _prompt_logprobs(
        self, sequence: _Sequence, start: int, count: int
    ) -> tuple[TokenLogprobs, ...]:
        if not sequence.wants_prompt_logprobs:
            return ()
        end = min(start + count, sequence.num_prompt - 1)
        return tuple(TokenLogprobs(sequence.tokens[p + 1], 0.0, p) for p in range(start, end))
