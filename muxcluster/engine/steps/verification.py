"""Draft tokens of a job's rows: where tokens are sampled to check them, and what is kept."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import Rows, TokenLogprobs
from muxcluster.engine.sampling.results import Pending, RowsResult


class Places(NamedTuple):
    """Where a job samples tokens, one after the other: behind each draft of a row, too."""

    rows: NDArray[np.intp]  # intp [places], the job's row of each, ascending
    back: NDArray[np.int32]  # int32 [places], tokens of the row that follow the place, all drafts


def sampled_places(rows: Rows) -> Places:
    """Return where tokens of the job's rows are sampled: once in each row that samples, and once
    more for each of its drafts."""
    sampling = np.flatnonzero(rows.samples)
    if rows.drafts is None:
        return Places(sampling, np.zeros(len(sampling), dtype=np.int32))
    counts = rows.drafts.counts[sampling] + np.int32(1)
    ends = counts.cumsum().repeat(counts)
    back = ends - 1 - np.arange(len(ends))
    return Places(sampling.repeat(counts), back.astype(np.int32))


def draft_places(rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    """Return table rows, positions and ids of all drafts of the rows, which have some: [drafts]."""
    drafts = rows.drafts
    assert drafts is not None
    counts = drafts.counts
    firsts = rows.ends - (counts.cumsum() - counts)
    positions = np.arange(len(drafts.tokens)) + firsts.repeat(counts)
    table_rows = rows.table_rows.repeat(counts).astype(np.int64)
    return table_rows, positions.astype(np.int64), drafts.tokens


def verified(result: RowsResult, places: Places, rows: Rows) -> RowsResult:
    """Return by row what the job yields, from one step's result by place.

    Of a row with drafts, the tokens up to the first that differs from its draft: the first is its
    token, the others its run. Prompt logprobs and vectors are by row already.
    """
    drafts = rows.drafts
    assert drafts is not None
    sampled, sampling = result.tokens[0], np.flatnonzero(rows.samples)
    counts = drafts.counts[sampling]
    firsts = (counts + 1).cumsum() - (counts + 1)
    draft_firsts = (drafts.counts.cumsum() - drafts.counts)[sampling]
    runs = {int(places.rows[place]): run for place, run in result.runs.items()}
    is_broken = result.is_broken[firsts]
    logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}
    for place, row in enumerate(sampling.tolist()):
        first, num_kept = int(firsts[place]), 1
        if counts[place]:
            begin = int(draft_firsts[place])
            wanted = drafts.tokens[begin : begin + int(counts[place])]
            is_right = sampled[first : first + len(wanted)] == wanted
            num_kept += len(wanted) if is_right.all() else int(is_right.argmin())
            is_broken[place] = result.is_broken[first : first + num_kept].any()
        if num_kept > 1:
            runs[row] = tuple(sampled[first + 1 : first + num_kept].tolist())
        if first in result.logprobs:
            kept = range(first, first + num_kept)
            logprobs[row] = tuple(entry for at in kept for entry in result.logprobs[at])
    return replace(
        result,
        tokens=result.tokens[:, firsts],
        logprobs=logprobs,
        is_broken=is_broken,
        refused={int(places.rows[place]): why for place, why in result.refused.items()},
        runs=runs,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Verifying:
    """A step whose result is by place."""

    pending: Pending
    places: Places
    rows: Rows

    @property
    def is_done(self) -> bool:
        return self.pending.is_done

    def result(self) -> RowsResult:
        """As `Pending.result`, by the job's rows."""
        return verified(self.pending.result(), self.places, self.rows)
