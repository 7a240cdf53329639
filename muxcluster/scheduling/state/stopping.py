"""Where output ends: end tokens, own stop ids, max_tokens and the context, for all rows at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.events import FinishReason
from muxcluster.core.request import Request
from muxcluster.scheduling.state.slots import Slots, SlotTable


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """Output tokens of a job after the stop rules.

    kept: int32 [rows]. tokens: int32 [sum(kept)]. is_stopped: bool [rows], the last kept token is
    an end token; None where none is. width: what every row keeps where that is the same number and
    nothing was cut, else None. has_ends: False where nobody ends with these tokens.
    """

    kept: NDArray[np.int32]
    tokens: NDArray[np.int32]
    is_stopped: NDArray[np.bool_] | None = None
    width: int | None = None
    has_ends: bool = True


def cut(
    table: SlotTable,
    slots: Slots,
    tokens: NDArray[np.int32],
    counts: NDArray[np.int32],
    eos_token_ids: Sequence[int],
) -> Cut:
    """Keep each row's tokens up to its first end token and its limit; none of an aborted row.

    slots, counts: int32 [rows]; tokens: int32 [sum(counts)], row after row. An end token is kept.
    """
    if (width := _width(table, tokens, counts, eos_token_ids)) is not None:
        left = int((table.max_total[slots] - table.num_tokens[slots]).min())
        if width <= left and not (table.has_own_stops and table.has_stops[slots].any()):
            return Cut(counts, tokens, width=width, has_ends=width == left)
    rows = np.arange(len(counts)).repeat(counts)
    positions = np.arange(len(tokens)) - (counts.cumsum() - counts)[rows]
    limits = table.max_total[slots] - table.num_tokens[slots]
    is_aborted = table.is_aborted[slots]
    if is_aborted.any():
        limits[is_aborted] = 0
    kept = np.minimum(counts, limits)
    is_end = _is_end(table, slots, tokens, rows, eos_token_ids)
    is_stopped = None
    if is_end is not None:
        first_end = counts.astype(np.int64)
        np.minimum.at(first_end, rows[is_end], positions[is_end])
        is_stopped = first_end < kept
        kept[is_stopped] = first_end[is_stopped] + 1
    return Cut(kept, tokens[positions < kept[rows]], is_stopped)


def _width(
    table: SlotTable,
    tokens: NDArray[np.int32],
    counts: NDArray[np.int32],
    eos_token_ids: Sequence[int],
) -> int | None:
    """Tokens of every row where all have as many, nobody is aborted and no end token is there;
    None otherwise.

    That is nearly every decode job, and looking costs a third of doing.
    """
    width = len(tokens) // len(counts)
    if table.has_aborted or width == 0 or np.count_nonzero(counts != width):
        return None
    if any(np.count_nonzero(tokens == token) for token in eos_token_ids):
        return None
    return width


def _is_end(
    table: SlotTable,
    slots: Slots,
    tokens: NDArray[np.int32],
    rows: NDArray[np.intp],
    eos_token_ids: Sequence[int],
) -> NDArray[np.bool_] | None:
    """Which of `tokens` are end tokens; None where none is."""
    is_end = np.zeros(len(tokens), dtype=np.bool_)
    for token in eos_token_ids:
        is_end |= tokens == token
    if eos_token_ids:
        is_end &= ~table.ignores_eos[slots][rows]
    for row in table.has_stops[slots].nonzero()[0].tolist():
        stops = table.at(int(slots[row])).request.sampling.stop_token_ids
        mine = rows == row
        is_end[mine] |= np.isin(tokens[mine], stops)
    return is_end if is_end.any() else None


def ended_already(
    request: Request, max_total: int, eos_token_ids: Sequence[int]
) -> tuple[FinishReason, int | None] | None:
    """How a recovered request had ended before the unit that ran it was lost; None: it had not."""
    output, sampling = request.output_tokens, request.sampling
    if len(output) == 0:
        return None
    last = int(output[-1])
    eos = () if sampling.ignore_eos else tuple(eos_token_ids)
    if last in (*eos, *sampling.stop_token_ids) and len(output) >= sampling.min_tokens:
        return FinishReason.STOP, last
    if len(request.prompt_tokens) + len(output) >= max_total:
        return FinishReason.LENGTH, None
    return None
