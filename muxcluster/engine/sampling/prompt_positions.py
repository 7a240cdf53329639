"""Which tokens of a batch must yield logprobs of the prompt tokens that follow them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.core.job import Admission, TokenLogprobs
from muxcluster.engine.sampling.sampler import prompt_logprobs


@dataclass(frozen=True, slots=True)
class AskedRow:
    """Row `row` needs its first `num_tokens` tokens, at positions from `start` in `table_row`."""

    row: int
    table_row: int
    start: int
    num_tokens: int
    num_top: int


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """Tokens of a batch whose logits are needed for prompt logprobs, and the rows that asked."""

    rows: tuple[AskedRow, ...]
    tokens: NDArray[np.int64]  # int64, indices into the flattened batch, row after row of `rows`

    def logprobs(self, logits: Tensor, history: Tensor) -> Mapping[int, tuple[TokenLogprobs, ...]]:
        """Return by row: the entry of position p describes the prompt token at p + 1.

        logits: fp32 [len(tokens), vocab]. history: int32 [max_seqs, max_model_len + 1].
        """
        found: dict[int, tuple[TokenLogprobs, ...]] = {}
        first = 0
        for asked in self.rows:
            after = asked.start + 1
            targets = history[asked.table_row, after : after + asked.num_tokens].cpu().numpy()
            own = logits[first : first + asked.num_tokens]
            found[asked.row] = prompt_logprobs(own, targets, asked.num_top)
            first += asked.num_tokens
        return found


class PromptPositions:
    """The table rows whose requests asked for prompt logprobs."""

    def __init__(self) -> None:
        self._asking: dict[int, tuple[int, int]] = {}

    def admit(self, admission: Admission) -> None:
        """Forget the row's former sequence, remember this one if it asks for prompt logprobs."""
        self._asking.pop(admission.row, None)
        num_top = admission.sampling.prompt_logprobs
        if num_top is not None:
            self._asking[admission.row] = (admission.num_prompt_tokens, num_top)

    def of(
        self, table_rows: NDArray[np.int32], starts: NDArray[np.int32], counts: NDArray[np.int32]
    ) -> Asked:
        """Return the tokens (arrays: [rows]) that precede prompt tokens of asking requests."""
        if not self._asking:
            return Asked((), np.empty(0, dtype=np.int64))
        offsets = np.cumsum(counts) - counts
        rows: list[AskedRow] = []
        for row, table_row in enumerate(table_rows.tolist()):
            num_prompt, num_top = self._asking.get(table_row, (0, 0))
            start = int(starts[row])
            num_tokens = min(int(counts[row]), num_prompt - 1 - start)
            if num_tokens > 0:
                rows.append(AskedRow(row, table_row, start, num_tokens, num_top))
        pieces = [offsets[asked.row] + np.arange(asked.num_tokens) for asked in rows]
        tokens = np.concatenate([np.empty(0, dtype=np.int64), *pieces])
        return Asked(tuple(rows), tokens.astype(np.int64))
