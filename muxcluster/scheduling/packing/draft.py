"""A job that is being put together: its rows so far, and how long it would take."""

import numpy as np

from muxcluster.core.job import SlotCopies, TableDelta
from muxcluster.scheduling.lending import Restored
from muxcluster.scheduling.modelstate import ModelState
from muxcluster.scheduling.packing.batch import Batch
from muxcluster.scheduling.prediction import StepTimes
from muxcluster.scheduling.slots import Slots


class Draft:
    """Rows of one model at one SM share.

    num_rows: rows so far. num_decodes, context: rows that decode and the tokens that they attend to.
    num_tokens, attention: tokens of prompt chunks, and Σ count · (start + count / 2).
    """

    def __init__(self, model: ModelState, share: float, times: StepTimes) -> None:
        self.model = model
        self.num_rows = self.num_decodes = self.context = self.num_tokens = 0
        self.attention = 0.0
        self._share = share
        self._times = times
        self._slots: list[Slots] = []
        self._counts: list[Slots] = []
        self._admitted: list[int] = []
        self._tables: list[TableDelta] = []
        self._copies: list[SlotCopies] = []

    def __len__(self) -> int:
        return self.num_rows

    @property
    def seconds(self) -> float:
        """Predicted time of the job as it is; 0 where nothing is known yet."""
        return self.seconds_with(0, 0)

    def seconds_with(self, num_decodes: int, context: int) -> float:
        """Predicted time with so many more rows that decode."""
        num_decodes, context = self.num_decodes + num_decodes, self.context + context
        times, name = self._times, self.model.name
        if not self.num_tokens:
            return times.decode_s(name, self._share, num_decodes, context) if num_decodes else 0.0
        if not num_decodes:
            return times.prefill_s(name, self._share, self.num_tokens, self.attention)
        return times.mixed_s(
            name, self._share, num_decodes, context, self.num_tokens, self.attention
        )

    def tokens_within(self, seconds: float, start: int, limit: int) -> int:
        """How many tokens of a prompt computed up to `start` make the job no longer than that."""
        if seconds == np.inf:
            return limit
        most = self._times.prefill_tokens_within(
            self.model.name,
            self._share,
            seconds,
            start,
            limit + self.num_tokens,
            self.num_decodes,
            self.context,
        )
        return max(0, min(limit, most - self.num_tokens))

    def decode(self, slots: Slots, grown: TableDelta | None) -> None:
        """Add rows that decode a token; grown: their new table entries."""
        if len(slots) == 0:
            return
        self._add(slots, np.ones(len(slots), dtype=np.int32), grown)
        self.num_decodes += len(slots)
        self.context += int(self.model.slots.num_computed[slots].sum()) + len(slots)

    def chunk(self, slot: int, count: int, *, is_admitted: bool = False) -> None:
        """Add the next `count` tokens of a prompt. is_admitted: it took its slot just now."""
        self._add(np.array([slot], dtype=np.int32), np.array([count], dtype=np.int32), None)
        if is_admitted:
            self._admitted.append(slot)
        self.num_tokens += count
        self.attention += count * (float(self.model.slots.num_computed[slot]) + count / 2)

    def restore(self, restored: Restored) -> None:
        """The rows of some slots are restored with this job; they must be added, too."""
        tables, copies = restored
        self._tables.append(tables)
        self._copies.append(copies)

    def _add(self, slots: Slots, counts: Slots, grown: TableDelta | None) -> None:
        self._slots.append(slots)
        self._counts.append(counts)
        self.num_rows += len(slots)
        if grown is not None and len(grown):
            self._tables.append(grown)

    def batch(self) -> Batch:
        """The rows, for the job builder."""
        if not self._slots:
            nothing = np.empty(0, dtype=np.int32)
            return Batch(nothing, nothing)
        return Batch(
            slots=_joined(self._slots),
            counts=_joined(self._counts),
            grown=_merged(self._tables),
            admitted=self._admitted,
            copies=tuple(self._copies),
        )


def _joined(parts: list[Slots]) -> Slots:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _merged(deltas: list[TableDelta]) -> TableDelta | None:
    if len(deltas) < 2:
        return deltas[0] if deltas else None
    return TableDelta(
        np.concatenate([delta.slots for delta in deltas]),
        np.concatenate([delta.columns for delta in deltas]),
        np.concatenate([delta.blocks for delta in deltas]),
    )
