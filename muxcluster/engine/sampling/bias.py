"""Edits of single logits: the request's bias, and end tokens suppressed by min_tokens."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.engine.sampling.batch import Batch


def rows_to_bias(batch: Batch) -> NDArray[np.int64]:
    return np.flatnonzero(batch.state.has_bias[batch.table_rows])


def rows_to_hold(batch: Batch) -> NDArray[np.int64]:
    """Return rows that have fewer than min_tokens output tokens, and can go on."""
    is_short = batch.output_index < batch.state.min_tokens[batch.table_rows]
    if batch.allowed is not None:
        is_short[batch.allowed.rows[batch.allowed.must_end]] = False
    return np.flatnonzero(is_short)


def add_bias(logits: Tensor, batch: Batch, rows: NDArray[np.int64]) -> None:
    """Add each request's (token, bias) pairs to its row of `logits` [rows, vocab], in place."""
    biases = [batch.state.biases[row] for row in batch.table_rows[rows].tolist()]
    values = np.concatenate([bias.values for bias in biases])
    where = _pairs(rows, [bias.tokens for bias in biases], logits.device)
    logits.index_put_(where, torch.from_numpy(values).to(logits), accumulate=True)


def hold_end_tokens(logits: Tensor, batch: Batch, rows: NDArray[np.int64]) -> None:
    """Make the end tokens of `rows` impossible in `logits` [rows, vocab], in place."""
    ends = [batch.state.end_tokens[row] for row in batch.table_rows[rows].tolist()]
    logits.index_put_(_pairs(rows, ends, logits.device), logits.new_tensor(-torch.inf))


def _pairs(
    rows: NDArray[np.int64], tokens: list[NDArray[np.int64]], device: torch.device
) -> tuple[Tensor, Tensor]:
    counts = [len(each) for each in tokens]
    flat = np.repeat(rows, counts), np.concatenate(tokens)
    row_ids, token_ids = (torch.from_numpy(ids).to(device) for ids in flat)
    return row_ids, token_ids
