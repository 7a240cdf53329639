"""Steps on a GPU, launched without waiting: decodes are replayed, all else runs directly."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.core.job import Admission, Rows, TableDelta
from muxcluster.engine.forward.batch import HostBatch, TokenBatch, host_batch
from muxcluster.engine.forward.loaded_model import LoadedModel, Numbers
from muxcluster.engine.forward.paged_attention import PagedAttention
from muxcluster.engine.forward.paged_forward import TokenForward
from muxcluster.engine.memory.pending_writes import PendingWrites
from muxcluster.engine.memory.upload import Array, PackedUpload
from muxcluster.engine.sampling.plain import draw, is_plain, limits, random_numbers
from muxcluster.engine.sampling.results import InOrder, Pending, Readback, Ready, result_of
from muxcluster.engine.sampling.sampler import sample
from muxcluster.engine.steps.device.captures import Capture
from muxcluster.engine.steps.device.decode_graphs import DecodeGraphs
from muxcluster.engine.steps.device.warm_up import WarmUpStep
from muxcluster.engine.steps.verification import (
    Verifying,
    draft_places,
    sampled_places,
    verified,
)

_NOBODY = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class _Inputs:
    batch: TokenBatch
    wanted: Tensor  # int64, tokens whose logits are needed
    places: Tensor  # int64 [sampling rows], in the flattened history, where their tokens go
    # outcome, drawing: as of `plain.draw`
    outcome: Tensor
    drawing: Sequence[Tensor]


class DeviceSteps:
    """Runs a model's rows, one launch at a time; launches are ordered by the calling stream."""

    def __init__(self, model: LoadedModel, capture: Capture) -> None:
        self._model = model
        self._capture = capture
        self._upload = PackedUpload(model.pool.device)
        self._writes = PendingWrites(model.arena)
        self._decodes: dict[int, DecodeGraphs] = {}

    def admit(self, admission: Admission) -> None:
        self._writes.admit(admission)

    def write_tables(self, delta: TableDelta) -> None:
        self._writes.add_tables(delta)

    def record(self, num_rows: int, share: float) -> None:
        """As `DecodeGraphs.record`, for the calling thread's stream."""
        self._decode().record(num_rows, share)

    def record_next(self) -> bool:
        """As `DecodeGraphs.record_next`, for the calling thread's stream; False if none decoded."""
        decode = self._decodes.get(self._capture.place)
        return decode is not None and decode.record_next()

    def warm_up(self, steps: Sequence[WarmUpStep]) -> None:
        """Run steps that touch no sequence, with and without adapters; draw a token of each."""
        adapters, device = self._model.adapters, self._model.pool.device
        for step in steps:
            batch, arrays = step.batch(), self._without_sequence()
            inputs = _inputs(batch, self._upload([*batch.arrays, *arrays]))
            positions = inputs.batch.positions.clamp(min=0)
            forwards: list[TokenForward] = [self._model.forward]
            if adapters is not None:
                forwards.append(adapters.any_forward(len(positions), device))
            for forward in forwards:
                self._draw(self._logits(inputs, positions, forward), inputs)

    def launch(self, rows: Rows, num_steps: int, *, is_recorded: bool = True) -> Pending:
        assert is_recorded or num_steps == 1, "a place without recorded steps only computes prompts"
        if len(rows) > self._model.most_recorded:
            return self._unrecorded(rows, num_steps)
        if is_recorded and np.all(rows.samples) and np.all(rows.counts == 1):
            return self._decode().launch(rows.table_rows, rows.starts, num_steps, rows.prefixes)
        first = self._once(rows)
        if num_steps == 1:
            return first
        starts = rows.starts + rows.counts
        more = self._decode().launch(rows.table_rows, starts, num_steps - 1, rows.prefixes)
        return InOrder((first, more))

    def waits(self, rows: Rows) -> bool:
        """Return whether the host's sampler chooses the token of some row."""
        return not is_plain(self._model.sampling, rows.table_rows, rows.ends)

    def _decode(self) -> DecodeGraphs:
        place = self._capture.place
        decode = self._decodes.get(place)
        if decode is None:
            decode = DecodeGraphs(self._model, self._capture, self._upload, self._writes)
            self._decodes[place] = decode
        return decode

    def _unrecorded(self, rows: Rows, num_steps: int) -> Pending:
        """Run steps of more rows than are recorded: the device takes longer than the launches."""
        pending = [self._once(rows)]
        ones = np.ones_like(rows.counts)
        for _ in range(num_steps - 1):
            rows = replace(rows, starts=rows.starts + rows.counts, counts=ones)
            pending.append(self._once(rows))
        return pending[0] if num_steps == 1 else InOrder(tuple(pending))

    def _once(self, rows: Rows) -> Pending:
        """Run one step of rows of any number of tokens."""
        model = self._model
        batch = host_batch(
            rows.table_rows, rows.starts, rows.counts, rows.prefixes, has_fixed_groups=True
        )
        asked = model.prompts.of(rows.table_rows, rows.starts, rows.counts)
        places = sampled_places(rows)
        table_rows = rows.table_rows[places.rows]
        lengths = (rows.starts + rows.counts)[places.rows] - places.back
        wanted = np.concatenate((batch.ends[places.rows] - places.back, asked.tokens))
        inputs = self._begin(batch, wanted, table_rows, lengths)
        if rows.drafts is not None:
            self._write_drafts(rows)
        pending = model.constrained.begin(table_rows, lengths)
        logits = self._logits(inputs, inputs.batch.positions, self._forward_of(rows))
        own, history = logits[: len(table_rows)], model.arena.history
        prompt_logprobs = asked.logprobs(logits[len(table_rows) :], history) if asked.rows else {}
        if is_plain(model.sampling, table_rows, lengths):
            self._draw(own, inputs)
            readback = Readback(1, len(table_rows), history.device)
            readback.take(0, inputs.outcome)
            drawn = readback.close(prompt_logprobs)
            return drawn if rows.drafts is None else Verifying(drawn, places, rows)
        allowed = None if pending is None else pending.wait()
        sampled = sample(own, table_rows, history, lengths, model.sampling, allowed)
        (tokens,) = self._upload([sampled.tokens])
        history.view(-1)[inputs.places] = tokens
        if rows.drafts is None:
            return Ready(result_of([sampled], places.rows, prompt_logprobs))
        by_place = result_of([sampled], np.arange(len(lengths), dtype=np.intp), prompt_logprobs)
        return Ready(verified(by_place, places, rows))

    def _write_drafts(self, rows: Rows) -> None:
        """Write the drafts of the rows behind their known tokens."""
        history = self._model.arena.history
        table_rows, positions, drafts = draft_places(rows)
        where, tokens = self._upload([table_rows * history.shape[1] + positions, drafts])
        history.view(-1)[where] = tokens

    def _begin(
        self, batch: HostBatch, wanted: NDArray[np.int64], table_rows: Numbers, lengths: Numbers
    ) -> _Inputs:
        """Upload all that the step reads, and make the pending writes."""
        model, num_rows = self._model, len(table_rows)
        width = model.arena.history.shape[1]
        arrays = [
            wanted if len(wanted) else np.zeros(1, dtype=np.int64),
            table_rows.astype(np.int64) * width + lengths,
            np.zeros(1 + num_rows, dtype=np.int64),
            *limits(model.sampling, table_rows, num_rows),
            random_numbers(model.sampling, table_rows, lengths, 1, num_rows)[0],
        ]
        tensors = self._upload([*batch.arrays, *arrays, *self._writes.take()])
        num_inputs = len(batch.arrays) + len(arrays)
        self._writes.write(tensors[num_inputs:])
        return _inputs(batch, tensors[:num_inputs])

    def _without_sequence(self) -> list[Array]:
        """Return arrays for a batch that needs one token's logits, for no sequence."""
        num_table_rows, width = self._model.arena.history.shape
        return [
            np.zeros(1, dtype=np.int64),
            np.full(1, (num_table_rows - 1) * width),
            np.zeros(2, dtype=np.int64),
            *limits(self._model.sampling, _NOBODY, 1),
            np.full(1, 0.5),
        ]

    def _draw(self, logits: Tensor, inputs: _Inputs) -> None:
        history = self._model.arena.history  # gets the tokens, too
        draw(logits, inputs.drawing, None, inputs.outcome)
        history.view(-1)[inputs.places] = inputs.outcome[1:].to(history.dtype)

    def _forward_of(self, rows: Rows) -> TokenForward:
        model = self._model
        if model.adapters is None:
            return model.forward
        return model.adapters.forward_of(rows.table_rows, rows.counts, model.pool.device)

    def _logits(self, inputs: _Inputs, positions: Tensor, forward: TokenForward) -> Tensor:
        """Return fp32 [wanted, vocab]; one row too many if none is wanted.

        positions: int64 [tokens], the batch's, as the model looks them up.
        """
        model, batch = self._model, inputs.batch
        tokens = model.arena.history[batch.token_rows, batch.positions].long()
        attention = PagedAttention(model.pool, model.arena, batch)
        return forward.logits(tokens, positions, attention, inputs.wanted)


def _inputs(batch: HostBatch, tensors: Sequence[Tensor]) -> _Inputs:
    # tensors: the batch's arrays and the other fields, on the device
    num_batch = len(batch.arrays)
    wanted, places, outcome, *drawing = tensors[num_batch:]
    return _Inputs(batch.on_device(tensors[:num_batch]), wanted, places, outcome, drawing)
