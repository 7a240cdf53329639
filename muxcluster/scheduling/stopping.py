"""Where output ends: end tokens, own stop ids, max_tokens and the context, for all rows at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.events import FinishReason
from muxcluster.core.request import Request
from muxcluster.scheduling.slots import Slots, SlotTable


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """Output tokens of a job after the stop rules.

    kept: int32 [rows]. tokens: int32 [sum(kept)]. rows, positions: intp [sum(kept)], each
    token's row and its index among the row's new tokens. is_stopped: bool [rows], the last kept
    token is an end token.
    """

    kept: NDArray[np.int32]
    tokens: NDArray[np.int32]
    rows: NDArray[np.intp]
    positions: NDArray[np.intp]
    is_stopped: NDArray[np.bool_]


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
    ends = counts.cumsum()
    rows = np.arange(len(counts)).repeat(counts)
    positions = np.arange(len(tokens)) - (ends - counts)[rows]
    is_end = _is_end(table, slots, tokens, rows, eos_token_ids)
    first_end = counts.astype(np.int64)
    if is_end.any():
        np.minimum.at(first_end, rows[is_end], positions[is_end])
    limits = np.where(table.is_aborted[slots], 0, table.max_total[slots] - table.num_tokens[slots])
    kept = np.minimum(np.minimum(counts, limits), first_end + 1)
    keeps = positions < kept[rows]
    return Cut(
        kept.astype(np.int32), tokens[keeps], rows[keeps], positions[keeps], first_end < kept
    )


def _is_end(
    table: SlotTable,
    slots: Slots,
    tokens: NDArray[np.int32],
    rows: NDArray[np.intp],
    eos_token_ids: Sequence[int],
) -> NDArray[np.bool_]:
    is_end = np.zeros(len(tokens), dtype=np.bool_)
    for token in eos_token_ids:
        is_end |= tokens == token
    is_end &= ~table.ignores_eos[slots][rows]
    for row in table.has_stops[slots].nonzero()[0].tolist():
        stops = table.at(int(slots[row])).request.sampling.stop_token_ids
        mine = rows == row
        is_end[mine] |= np.isin(tokens[mine], stops)
    return is_end


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
