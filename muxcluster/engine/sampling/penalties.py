"""Penalties on earlier tokens: Hugging Face's repetition, OpenAI's frequency and presence."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.engine.sampling.batch import Batch


def rows_repeating(batch: Batch) -> NDArray[np.int64]:
    return np.flatnonzero(batch.state.repetition_penalty[batch.table_rows] != 1.0)


def rows_counting(batch: Batch) -> NDArray[np.int64]:
    """Return rows with a frequency or presence penalty and some output to count."""
    state, table_rows = batch.state, batch.table_rows
    penalised = (state.frequency_penalty[table_rows] != 0) | (
        state.presence_penalty[table_rows] != 0
    )
    return np.flatnonzero(penalised & (batch.output_index > 0))


def penalise_repetition(logits: Tensor, batch: Batch, rows: NDArray[np.int64]) -> None:
    """Divide positive logits of prompt and output tokens by the penalty, multiply negative ones.

    logits: [rows, vocab], changed in place (CTRL, Keskar et al. 2019, with Hugging Face's rule
    for negative scores).
    """
    starts = np.zeros(len(rows), dtype=np.int64)
    row_ids, tokens, _ = _occurrences(logits, batch, rows, starts)
    penalty = _per_row(batch.state.repetition_penalty, batch, logits)[row_ids]
    scores = logits[row_ids, tokens]
    penalised = torch.where(scores < 0, scores * penalty, scores / penalty)
    logits[row_ids, tokens] = penalised.clamp(max=torch.finfo(logits.dtype).max)


def penalise_counts(logits: Tensor, batch: Batch, rows: NDArray[np.int64]) -> None:
    """Subtract frequency_penalty per occurrence and presence_penalty once, output tokens only.

    logits: [rows, vocab], changed in place.
    """
    starts = batch.state.num_prompt_tokens[batch.table_rows[rows]]
    row_ids, tokens, counts = _occurrences(logits, batch, rows, starts)
    frequency = _per_row(batch.state.frequency_penalty, batch, logits)[row_ids]
    presence = _per_row(batch.state.presence_penalty, batch, logits)[row_ids]
    logits[row_ids, tokens] -= frequency * counts + presence


def _per_row(values: NDArray[np.float32], batch: Batch, logits: Tensor) -> Tensor:
    return torch.from_numpy(values[batch.table_rows]).to(logits)


def _occurrences(
    logits: Tensor, batch: Batch, rows: NDArray[np.int64], starts: NDArray[np.int64]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return distinct (row, token) pairs and their counts in history[table_row, start : length].

    Three tensors [pairs]: row into `logits`, token, count.
    """
    # The cost follows the text, not the vocabulary.
    counts = batch.lengths[rows] - starts
    row_of = np.repeat(np.arange(len(rows)), counts)
    place = np.arange(len(row_of)) - np.repeat(np.cumsum(counts) - counts, counts)
    device = batch.history.device
    table_rows = torch.from_numpy(batch.table_rows[rows][row_of].astype(np.int64)).to(device)
    positions = torch.from_numpy(place + starts[row_of]).to(device)
    vocab_size = logits.shape[1]
    codes = (
        torch.from_numpy(rows[row_of] * vocab_size).to(device)
        + batch.history[table_rows, positions]
    )
    distinct, times = torch.unique(codes, return_counts=True)
    return distinct // vocab_size, distinct % vocab_size, times
