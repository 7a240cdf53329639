"""Steps that are waited for: on the CPU, and on GPUs of models whose steps are not recorded."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.core.job import Admission, Rows, Side, TableDelta, TokenLogprobs
from muxcluster.core.padded import PaddedBatch
from muxcluster.engine.adapters.forward import RowAdapters
from muxcluster.engine.forward.attention import LayerAttention
from muxcluster.engine.forward.batch import TokenBatch, token_batch
from muxcluster.engine.forward.cpu_attention import PlannedAttention
from muxcluster.engine.forward.loaded_model import Numbers
from muxcluster.engine.forward.paged_attention import PagedAttention
from muxcluster.engine.forward.paged_forward import TokenForward
from muxcluster.engine.memory.arena import ModelArena
from muxcluster.engine.sampling.constrained import ConstrainedRows, PendingAllowed
from muxcluster.engine.sampling.parameters import SequenceSampling
from muxcluster.engine.sampling.prompt_positions import Asked, PromptPositions
from muxcluster.engine.sampling.results import Pending, Ready, result_of
from muxcluster.engine.sampling.sampler import Sampled, sample
from muxcluster.engine.steps.device.warm_up import WarmUpStep
from muxcluster.engine.steps.verification import draft_places, sampled_places, verified
from muxcluster.engine.vision.rows import RowImages


class RowsForward(Protocol):
    """Runs rows through a model, whose cache has what was computed of them before.

    padded: the batch of the rows that decoded just now; None if none did, or none is padded.
    """

    @property
    def padded(self) -> PaddedBatch | None: ...

    def logits(self, rows: Rows, asked: Asked) -> Tensor:
        """Return fp32 [sampled places + asked.tokens, vocab], each in order: see `sampled_places`.

        Only rows of our own attention have draft tokens.

        The forward runs even if no logits are wanted.
        """
        ...

    def forget(self, row: int) -> None:
        """Forget the row's sequence: another one has the row."""
        ...


class PagedRows:
    """Runs rows of a model whose keys and values are in the pool, through our attention."""

    padded = None

    def __init__(
        self,
        forward: TokenForward,
        pool: Tensor,
        arena: ModelArena,
        adapters: RowAdapters | None = None,
        images: RowImages | None = None,
    ) -> None:
        """pool: uint8 [num_blocks, block_bytes]; arena: the model's part. adapters, images: of the
        rows, not both; None: the model has none, or takes none."""
        assert adapters is None or images is None, "each has a forward of its own"
        self._forward = forward
        self._adapters = adapters
        self._images = images
        self._pool = pool
        self._arena = arena
        self._attention: Callable[[Tensor, ModelArena, TokenBatch], LayerAttention]
        self._attention = PlannedAttention if pool.device.type == "cpu" else PagedAttention

    def logits(self, rows: Rows, asked: Asked) -> Tensor:
        device, arena = self._pool.device, self._arena
        batch = token_batch(rows.table_rows, rows.starts, rows.counts, device, rows.prefixes)
        places = sampled_places(rows)
        wanted = np.concatenate((batch.ends[places.rows] - places.back, asked.tokens))
        tokens = arena.history[batch.token_rows, batch.positions].long()
        attention = self._attention(self._pool, arena, batch)
        some = wanted if len(wanted) else np.zeros(1, dtype=np.int64)
        where = torch.from_numpy(some).to(device)
        forward = self._forward
        if self._adapters is not None:
            forward = self._adapters.forward_of(rows.table_rows, rows.counts, device)
        if self._images is not None:
            forward = self._images.forward_of(rows, batch.positions)
        return forward.logits(tokens, batch.positions, attention, where)[: len(wanted)]

    def forget(self, row: int) -> None:
        """Do nothing: nothing is kept beside the pool."""


class HostSteps:
    """Runs a model's rows; several threads may run rows of their own at a time."""

    def __init__(
        self,
        forward: RowsForward,
        arena: ModelArena,
        sampling: SequenceSampling,
        prompts: PromptPositions,
        constrained: ConstrainedRows,
    ) -> None:
        """arena: the model's part. sampling, prompts, constrained: of the admitted sequences."""
        self._forward = forward
        self._arena = arena
        self._sampling = sampling
        self._prompts = prompts
        self._constrained = constrained
        self._device = arena.history.device

    def admit(self, admission: Admission) -> None:
        """Write the row's side, and its tokens if the admission has them."""
        row, tokens, arena = admission.row, admission.tokens, self._arena
        self._forward.forget(row)
        arena.from_right[row] = admission.side is Side.RIGHT
        if len(tokens):
            arena.history[row, : len(tokens)] = self._tensor(tokens)

    def write_tables(self, delta: TableDelta) -> None:
        if not len(delta):
            return
        tables = self._arena.tables
        blocks = self._tensor(delta.blocks).to(tables.dtype)
        table_rows, columns = self._index(delta.rows), self._index(delta.columns)
        columns -= self._arena.num_state_columns  # below 0, those of states: counted from the end
        tables[table_rows, :, :, columns] = blocks.view(len(delta), *tables.shape[1:3])

    def warm_up(self, steps: Sequence[WarmUpStep]) -> None:
        """Do nothing: nothing is compiled."""

    def record(self, num_rows: int, share: float) -> None:
        """Do nothing: nothing is recorded."""

    def record_next(self) -> bool:
        """Return False: nothing is recorded."""
        return False

    def launch(self, rows: Rows, num_steps: int, *, is_recorded: bool = True) -> Pending:
        """As `ModelRunner.launch`; done on return, and nothing is recorded."""
        if rows.drafts is not None:
            table_rows, positions, drafts = draft_places(rows)
            where = self._index(table_rows), self._index(positions)
            self._arena.history[where] = self._tensor(drafts)
        places = sampled_places(rows)
        sampling = places.rows
        starts, counts = rows.starts, rows.counts
        steps: list[Sampled] = []
        prompt_logprobs: Mapping[int, tuple[TokenLogprobs, ...]] = {}
        for _ in range(num_steps):
            # Rows that decode take several steps, so groups stay the same.
            now = replace(rows, starts=starts, counts=counts)
            asked = self._prompts.of(rows.table_rows, starts, counts)
            lengths = (starts + counts)[sampling] - places.back
            mine = rows.table_rows[sampling]
            allowed = self._constrained.begin(mine, lengths, is_last=num_steps == 1)
            logits = self._forward.logits(now, asked)
            own = logits[: len(sampling)]
            steps.append(self._sample(own, mine, lengths, allowed))
            if len(asked.rows):
                history = self._arena.history
                prompt_logprobs = asked.logprobs(logits[len(sampling) :], history)
            starts, counts = starts + counts, np.ones_like(counts)
        if rows.drafts is not None:
            by_place = result_of(steps, np.arange(len(sampling), dtype=np.intp), prompt_logprobs)
            return Ready(verified(by_place, places, rows))
        result = result_of(steps, sampling, prompt_logprobs)
        padded = self._forward.padded
        return Ready(result if padded is None else replace(result, padded=padded))

    def waits(self, rows: Rows) -> bool:
        """Always True: the host is the device."""
        return True

    def _sample(
        self,
        logits: Tensor,
        table_rows: Numbers,
        lengths: Numbers,
        pending: PendingAllowed | None,
    ) -> Sampled:
        if not len(table_rows):
            return Sampled(np.empty(0, dtype=np.int32), {})
        history = self._arena.history
        allowed = None if pending is None else pending.wait()
        sampled = sample(logits, table_rows, history, lengths, self._sampling, allowed)
        history[self._index(table_rows), self._index(lengths)] = self._tensor(sampled.tokens)
        for row, run in sampled.runs.items():
            start = int(lengths[row]) + 1
            mine = history[int(table_rows[row]), start : start + len(run)]
            mine.copy_(torch.tensor(run))
        return sampled

    def _index(self, array: NDArray[np.integer]) -> Tensor:
        return self._tensor(array.astype(np.int64))

    def _tensor(self, array: NDArray[np.integer]) -> Tensor:
        """Return a copy: arrays of a decoded message are read-only, which torch does not know."""
        return torch.from_numpy(array.copy()).to(self._device)
