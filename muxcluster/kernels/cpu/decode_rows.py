"""Sorts the rows of a decode step by the number of columns they read, and groups similar ones."""

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class Rows(NamedTuple):
    """Sequences by number of columns to read, int64 [rows] each.

    Keys at begins <= position < lengths are seen.
    """

    table_rows: Tensor
    begins: Tensor
    lengths: Tensor


def by_width(
    table_rows: Tensor,
    lengths: Tensor,
    sliding_window: int | None,
    block_tokens: int,
    begins: Tensor | None = None,
) -> tuple[Rows, list[int], Tensor]:
    """Return the rows sorted by width, the widths, and which row of the batch each one is.

    begins: int64 [rows], where the keys of a row begin; None: at 0, or where its window does.
    """
    if begins is None:
        begins = torch.zeros_like(lengths)
        if sliding_window is not None:
            begins = (lengths - sliding_window).clamp_(min=0)
    ends = (lengths + block_tokens - 1) // block_tokens
    widths, order = (ends - begins // block_tokens).sort(stable=True)
    rows = Rows(*(each[order].long() for each in (table_rows, begins, lengths)))
    return rows, widths.tolist(), order


def is_identity(order: Tensor) -> bool:
    return torch.equal(order, torch.arange(len(order), device=order.device))


def groups(widths: list[int], budget: int) -> Iterator[tuple[slice, int]]:
    """Cut sorted widths so that a group padded to its widest keeps to `budget` columns.

    Yields rows and widest. Rows of width 0 are left out; one wider than the budget is alone.
    """
    start = bisect_right(widths, 0)
    while start < len(widths):
        stop = start + 1
        while stop < len(widths) and (stop + 1 - start) * widths[stop] <= budget:
            stop += 1
        yield slice(start, stop), widths[stop - 1]
        start = stop


def ordered_like(log_sums: Tensor | None, order: Tensor | None) -> Tensor | None:
    """Return where a plan that works in another order than its rows' writes their sums."""
    # zeros, for rows without keys
    return log_sums if log_sums is None or order is None else torch.zeros_like(log_sums)


def softmax(scores: Tensor, log_sums: Tensor | None) -> Tensor:
    """Over the last dimension of scores [..., keys], which may be overwritten.

    log_sums: as many elements as there are softmaxes, filled with the logarithms of the sums of
    the exponentials.
    """
    if log_sums is None:
        return scores.softmax(-1)
    sums = scores.logsumexp(-1)
    log_sums.copy_(sums.view(log_sums.shape))
    return scores.sub_(sums.unsqueeze(-1)).exp_()
