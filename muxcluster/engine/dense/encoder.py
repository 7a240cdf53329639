"""Encoders: every token attends to all of its text, no part of which can be computed alone.

The scheduler cuts prompts into chunks as for any model. The chunk that ends a text computes all of
it, from the tokens in its history; the others compute nothing. So no keys and values are kept.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.core.backends import ENCODER, ModelBackend
from muxcluster.core.job import Rows
from muxcluster.engine.dense.prefill import MOST_PADDING, similar
from muxcluster.engine.memory.arena import ModelArena
from muxcluster.engine.sampling.prompt_positions import Asked

MOST_TOKENS = 8192  # of a padded batch, unless one text is longer
MEAN, CLS, SCORE = "mean", "cls", "score"


@dataclass(frozen=True, slots=True, eq=False)
class Encoder:
    """A loaded encoder.

    pooling: MEAN of the last hidden states of all tokens; CLS, the first; SCORE: what a classifier
    makes of them.
    """

    name: str
    model: Any  # transformers' own
    pooling: str

    @property
    def backend(self) -> ModelBackend:
        return ModelBackend(self.name, ENCODER)

    def embed(self, tokens: Tensor, is_token: Tensor) -> Tensor:
        """Return fp32 [texts, size]. tokens: int64 [texts, longest], is_token: bool, alike."""
        output = self.model(input_ids=tokens, attention_mask=is_token.long())
        if self.pooling == SCORE:
            scores: Tensor = output.logits.float()
            return scores
        states = output.last_hidden_state
        if self.pooling == CLS:
            first: Tensor = states[:, 0].float()
            return first
        weights = is_token.unsqueeze(-1)
        summed: Tensor = (states.float() * weights).sum(1)
        return summed / weights.sum(1)


class EncoderRows:
    """Computes the vectors of texts that end in a job."""

    padded = None

    def __init__(self, encoder: Encoder, arena: ModelArena, size: int) -> None:
        """arena: the model's part. size: of a vector."""
        self._encoder = encoder
        self._arena = arena
        self._size = size
        self._filler = getattr(encoder.model.config, "pad_token_id", None) or 0

    def logits(self, rows: Rows, asked: Asked) -> Tensor:
        """Return fp32 [sampling rows, size], in order."""
        assert not len(asked.tokens), "a text has no log-probabilities"
        ending = rows.samples
        table_rows, lengths = rows.table_rows[ending], (rows.starts + rows.counts)[ending].tolist()
        device = self._arena.history.device
        vectors = torch.empty((len(lengths), self._size), dtype=torch.float32, device=device)
        for alike in similar(lengths, most_padding=MOST_PADDING):
            at_once = max(1, MOST_TOKENS // lengths[alike[0]])
            for first in range(0, len(alike), at_once):
                group = alike[first : first + at_once]
                ends = torch.tensor([lengths[i] for i in group], device=device)
                vectors[group] = self._embed(table_rows[group], ends)
        return vectors

    def forget(self, row: int) -> None:
        """Do nothing: nothing is kept of a row."""

    def _embed(self, table_rows: NDArray[np.int32], ends: Tensor) -> Tensor:
        """Return the vectors of texts of `ends` tokens, the longest first."""
        history, longest = self._arena.history, int(ends[0])
        places = torch.from_numpy(table_rows.astype(np.int64)).to(history.device)
        tokens = history[places, :longest].long()
        is_token = torch.arange(longest, device=history.device) < ends.unsqueeze(1)
        return self._encoder.embed(tokens.masked_fill(~is_token, self._filler), is_token)
