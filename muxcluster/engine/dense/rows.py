"""Runs a unit's rows through a model's own cache: read from the pool, padded, run and written back.

Rows that decode stay in a running batch from job to job (BATON §4): new rows are embedded, rows
that left are removed together with the padding they caused. The pool holds their cache too, so any
worker can continue any sequence, and nothing is lost with a batch.
"""

# The scheduler decides how many rows are in the batch, from what the batch is found to take
# (scheduling/state/batch_scaling.py). Rows that wait keep their blocks of the pool on the device,
# so nothing is prefetched (BATON §3.2 keeps such rows in host memory); what the scheduler lent or
# preempted is restored by the unit's copies before the job that needs it.

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.core.job import Rows
from muxcluster.core.padded import PaddedBatch, PaddedLimit
from muxcluster.engine.dense.batch import KeptRow, end_aligned
from muxcluster.engine.dense.model import DenseModel
from muxcluster.engine.dense.padding import Padding
from muxcluster.engine.dense.prefill import similar
from muxcluster.engine.dense.store import RowStore
from muxcluster.engine.memory.arena import ModelArena
from muxcluster.engine.sampling.prompt_positions import Asked
from muxcluster.scheduling.state.batch_scaling import BatchScaling


@dataclass(frozen=True, slots=True)
class Chunk:
    """Row `row` of a job computes the tokens of `table_row` from `start` to `end`."""

    row: int
    table_row: int
    start: int
    end: int


class DenseRows:
    """Computes logits of the rows of jobs.

    The running batch and what is made beside it take at most twice the limit.
    """

    def __init__(
        self, model: DenseModel, store: RowStore, arena: ModelArena, limit: PaddedLimit
    ) -> None:
        """limit: of a padded batch; it holds the longest sequence."""
        self._model = model
        self._layout = model.layout
        self._store = store
        self._arena = arena
        self._most_bytes = limit.limit_bytes
        self._stale: set[int] = set()
        max_seqs = len(arena.history) - 1
        self._scaling = BatchScaling(limit.row_bytes, limit.limit_bytes, max_seqs)
        self.batch = model.batch()  # of the rows that decode, by table row
        self.padded: PaddedBatch | None = None  # as `RowsForward.padded`

    def forget(self, table_row: int) -> None:
        """Forget what the batch holds of the table row: another sequence has it."""
        self._stale.add(table_row)

    def logits(self, rows: Rows, asked: Asked) -> Tensor:
        """Return fp32 [sampling rows + asked.tokens, vocab], in order; write caches to the pool."""
        arrays = (rows.table_rows, rows.starts, rows.counts)
        places = zip(*(each.tolist() for each in arrays), strict=True)
        chunks = [
            Chunk(row, table_row, start, start + count)
            for row, (table_row, start, count) in enumerate(places)
        ]
        wants = {each.row: each.num_tokens for each in asked.rows}
        found: dict[int, Tensor] = {}
        self.padded = None
        try:
            decoding = [each for each in chunks if each.start and each.end == each.start + 1]
            others = [each for each in chunks if not each.start or each.end > each.start + 1]
            restarting = [each for each in decoding if each.row in wants]
            decoding = [each for each in decoding if each.row not in wants]
            for group in self._fitting(decoding):
                restarting += self._decode(group, found)
            self._prefill(others + restarting, rows.samples, wants, found)
        except BaseException:
            self.batch = self._model.batch()  # its cache may be of another length than it says
            raise
        last = [found[row][-1] for row in np.flatnonzero(rows.samples).tolist()]
        prompts = [found[row][:num_tokens] for row, num_tokens in wants.items()]
        empty = torch.empty((0, self._model.forward.vocab_size), device=self._model.forward.device)
        return torch.cat([torch.stack(last) if last else empty, *prompts])

    def _fitting(self, chunks: Sequence[Chunk]) -> Iterator[list[Chunk]]:
        """Return groups of similar lengths whose padded caches keep to the limit."""
        # Rows that decode are one group: the scheduler knew what they take.
        if self._num_bytes(chunks) <= self._most_bytes:
            if chunks:
                yield list(chunks)
            return
        group: list[Chunk] = []
        for chunk in sorted(chunks, key=lambda each: -each.end):
            if group and self._num_bytes([*group, chunk]) > self._most_bytes:
                yield group
                group = []
            group.append(chunk)
        yield group

    def _num_bytes(self, chunks: Sequence[Chunk]) -> float:
        longest = max((each.end for each in chunks), default=0)
        return self._scaling.num_bytes(len(chunks), longest)

    def _decode(self, chunks: Sequence[Chunk], found: dict[int, Tensor]) -> list[Chunk]:
        """Compute one more token of each; return the chunks whose states are lost instead."""
        batch, wanted = self.batch, {each.table_row: each for each in chunks}
        stays = {
            table_row: length
            for table_row, length in batch.lengths.items()
            if table_row in wanted
            and table_row not in self._stale
            and length == wanted[table_row].start
        }
        self._stale.clear()
        batch.keep(tuple(stays))
        lost: list[Chunk] = []
        come: dict[int, KeptRow] = {}
        for chunk in chunks:
            if chunk.table_row not in stays:
                kept = self._store.read(chunk.table_row, chunk.start)
                if kept is None:
                    lost.append(chunk)
                else:
                    come[chunk.table_row] = kept
        batch.embed(come)
        if not batch.queries:
            return lost
        table_rows = np.array(batch.queries, dtype=np.int64)
        starts = np.array([wanted[table_row].start for table_row in batch.queries], dtype=np.int64)
        history = self._arena.history
        device = history.device
        last = history[torch.from_numpy(table_rows).to(device), torch.from_numpy(starts).to(device)]
        logits = batch.step(dict(zip(batch.queries, last.tolist(), strict=True)))
        self.padded = PaddedBatch(len(table_rows), batch.padding.length, batch.num_bytes)
        self._scaling.observe(self.padded)
        self._store.write(batch.cache, table_rows, starts, np.ones_like(starts))
        for each, table_row in zip(logits, batch.queries, strict=True):
            found[wanted[table_row].row] = each.unsqueeze(0)
        return lost

    def _prefill(
        self,
        chunks: Sequence[Chunk],
        samples: NDArray[np.bool_],
        wants: dict[int, int],
        found: dict[int, Tensor],
    ) -> None:
        """Compute prompts beside the batch; those that begin, in groups of similar lengths."""
        # The rest of a prompt is computed behind its beginning if the model allows it, else the
        # whole prompt again. For a model with states the whole prompt is computed with its last
        # chunk.
        # The states of a beginning could not be told from the padding of other rows.
        if self._layout.state_bytes:
            idle = [each for each in chunks if not samples[each.row] and each.row not in wants]
            self._store.forget(np.array([each.table_row for each in idle], dtype=np.int64))
            chunks = [each for each in chunks if each not in idle]
        goes_on = [each for each in chunks if each.start and self._model.takes_chunks]
        for chunk in goes_on:
            if self.batch.num_bytes + 2 * self._num_bytes([chunk]) > 2 * self._most_bytes:
                self.batch = self._model.batch()  # its rows are in the pool
            kept = self._store.read(chunk.table_row, chunk.start)
            assert kept is not None, "a cache without states is always there"
            self._run([chunk], kept, wants, found)
        begins = [each for each in chunks if each not in goes_on]
        for group in similar([each.end for each in begins], most_padding=self._model.most_padding):
            for fitting in self._fitting([begins[index] for index in group]):
                self._run(fitting, None, wants, found)

    def _run(
        self,
        chunks: Sequence[Chunk],
        kept: KeptRow | None,
        wants: dict[int, int],
        found: dict[int, Tensor],
    ) -> None:
        """Compute the tokens of `chunks` from the first on, or of one behind those of `kept`."""
        length = 0 if kept is None else kept.length
        counts = np.array([each.end - length for each in chunks], dtype=np.int64)
        padding = (Padding.none() if kept is None else Padding.of([length])).appended(
            counts if kept else counts[:0], () if kept else counts.tolist()
        )
        history = self._arena.history
        tokens = [history[each.table_row, length : each.end].cpu().numpy() for each in chunks]
        is_asked = any(each.row in wants for each in chunks)
        output = self._model.forward.run(
            end_aligned(tokens, int(counts.max())),
            padding,
            None if kept is None else kept.cache,
            all_logits=is_asked,
        )
        # What others may read already is not written again, but states come with all tokens.
        new = [each.end if self._layout.state_bytes else each.end - each.start for each in chunks]
        widths = np.array(new, dtype=np.int64)
        table_rows, ends = zip(*((each.table_row, each.end) for each in chunks), strict=True)
        self._store.write(output.cache, np.array(table_rows), np.array(ends) - widths, widths)
        for index, each in enumerate(chunks):
            count = each.end - each.start
            logits = output.logits[index]
            found[each.row] = logits[-count:] if is_asked else logits.unsqueeze(0)
