"""One model of a unit in this process: applies a job's news, runs its forwards, samples."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.core.job import Admission, Rows, Side, TableDelta, TokenLogprobs
from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.arena import ModelArena
from muxcluster.engine.attention import LayerAttention
from muxcluster.engine.attention_cpu import PlannedAttention
from muxcluster.engine.attention_paged import PagedAttention
from muxcluster.engine.batch import TokenBatch, token_batch
from muxcluster.engine.forward import TokenForward
from muxcluster.engine.fused import FusedDecoder
from muxcluster.engine.prompt_positions import PromptPositions
from muxcluster.engine.sampling.sampler import Sampled, sample
from muxcluster.engine.sampling.slots import SlotSampling


@dataclass(frozen=True, slots=True, eq=False)
class RowsResult:
    """tokens: int32 [steps, sampling rows]. Logprobs: as in `JobResult`, keyed by row."""

    tokens: NDArray[np.int32]
    logprobs: Mapping[int, tuple[TokenLogprobs, ...]]
    prompt_logprobs: Mapping[int, tuple[TokenLogprobs, ...]]
    num_broken: int


class ModelRunner:
    """pool: uint8 [num_blocks, block_bytes], shared by all models; arena: this model's part."""

    def __init__(
        self, spec: ModelSpec, forward: TokenForward, pool: Tensor, arena: ModelArena
    ) -> None:
        self._forward = forward
        self._pool = pool
        self._arena = arena
        self._device = pool.device
        self._attention: Callable[[Tensor, ModelArena, TokenBatch], LayerAttention] = (
            PlannedAttention if pool.device.type == "cpu" else PagedAttention
        )
        self._sampling = SlotSampling(spec.max_seqs, spec.vocab_size, spec.eos_token_ids)
        self._prompts = PromptPositions()

    @property
    def is_fused(self) -> bool:
        """True where the forward is our own, which several threads may run at a time."""
        return isinstance(self._forward, FusedDecoder)

    def admit(self, admission: Admission) -> None:
        """Learn the sampling rules of a slot; write its tokens where they came along."""
        slot, tokens = admission.slot, admission.tokens
        self._sampling.admit(slot, admission.sampling, admission.num_prompt_tokens)
        self._prompts.admit(admission)
        self._arena.from_right[slot] = admission.side is Side.RIGHT
        if len(tokens):
            self._arena.history[slot, : len(tokens)] = self._tensor(tokens)

    def write_tables(self, delta: TableDelta) -> None:
        """Enter the delta's blocks into the block tables."""
        if not len(delta):
            return
        tables = self._arena.tables
        blocks = self._tensor(delta.blocks).to(tables.dtype)
        slots, columns = self._index(delta.slots), self._index(delta.columns)
        tables[slots, :, :, columns] = blocks.view(len(delta), *tables.shape[1:3])

    def run(self, rows: Rows, num_steps: int) -> RowsResult:
        """Run the rows; with `num_steps` > 1 each row goes on from its own sampled token.

        Sampled tokens are written to the history.
        """
        sampling = np.flatnonzero(rows.samples)
        assert num_steps == 1 or len(sampling) == len(rows), "only decode rows take several steps"
        starts, counts = rows.starts, rows.counts
        steps: list[Sampled] = []
        prompt_logprobs: Mapping[int, tuple[TokenLogprobs, ...]] = {}
        for _ in range(num_steps):
            batch = token_batch(rows.slots, starts, counts, self._device)
            asked = self._prompts.of(rows.slots, starts, counts)
            logits = self._logits(batch, np.concatenate((batch.ends[sampling], asked.tokens)))
            lengths = (starts + counts)[sampling]
            steps.append(self._sample(logits[: len(sampling)], rows.slots[sampling], lengths))
            if len(asked.rows):
                prompt_logprobs = asked.logprobs(logits[len(sampling) :], self._arena.history)
            starts, counts = starts + counts, np.ones_like(counts)
        return RowsResult(
            tokens=np.stack([step.tokens for step in steps]),
            logprobs=_by_row(steps, sampling),
            prompt_logprobs=prompt_logprobs,
            num_broken=sum(len(step.broken_rows) for step in steps),
        )

    def _logits(self, batch: TokenBatch, wanted: NDArray[np.int64]) -> Tensor:
        """fp32 [len(wanted), vocab]; the forward runs even where no logits are wanted."""
        tokens = self._arena.history[batch.token_slots, batch.positions].long()
        attention = self._attention(self._pool, self._arena, batch)
        some = wanted if len(wanted) else np.zeros(1, dtype=np.int64)
        logits = self._forward.logits(tokens, batch.positions, attention, self._index(some))
        return logits[: len(wanted)]

    def _sample(
        self, logits: Tensor, slots: NDArray[np.int32], lengths: NDArray[np.int32]
    ) -> Sampled:
        if not len(slots):
            return Sampled(np.empty(0, dtype=np.int32), {})
        history = self._arena.history
        sampled = sample(logits, slots, history, lengths, self._sampling)
        history[self._index(slots), self._index(lengths)] = self._tensor(sampled.tokens)
        return sampled

    def _index(self, array: NDArray[np.integer]) -> Tensor:
        return self._tensor(array.astype(np.int64))

    def _tensor(self, array: NDArray[np.integer]) -> Tensor:
        """A copy: arrays of a decoded message are read-only, which torch does not know."""
        return torch.from_numpy(array.copy()).to(self._device)


def _by_row(
    steps: list[Sampled], sampling: NDArray[np.intp]
) -> Mapping[int, tuple[TokenLogprobs, ...]]:
    """Logprobs of all steps by row of the job (the steps count sampling rows only)."""
    if not any(step.logprobs for step in steps):
        return {}
    return {
        int(row): tuple(step.logprobs[i] for step in steps)
        for i, row in enumerate(sampling)
        if i in steps[0].logprobs
    }
