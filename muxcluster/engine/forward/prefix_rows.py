"""Puts rows that share prefixes side by side for attention, and results back in the job's order."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import Rows, SharedPrefixes
from muxcluster.engine.sampling.results import Pending, RowsResult

_NO_LEADER = -1  # sorts rows that share nothing together, before the groups


def side_by_side(rows: Rows) -> tuple[Rows, NDArray[np.intp] | None]:
    """Return the rows, those of a group next to each other, and which row of the job each one is.

    Returns None if the order stays the same.
    """
    if rows.prefixes is None:
        return rows, None
    order = np.argsort(_keys(rows.prefixes), kind="stable")
    return Rows(
        rows.table_rows[order],
        rows.starts[order],
        rows.counts[order],
        rows.samples[order],
        rows.prefixes.of(order),
        None if rows.drafts is None else rows.drafts.of(order),
    ), order


def group_arrays(prefixes: SharedPrefixes) -> tuple[NDArray[np.intp], NDArray[np.int32]]:
    """Return offsets [groups + 1] and prefix lengths [groups] of rows that are side by side.

    All rows that share nothing form one group without a prefix.
    """
    starts = np.flatnonzero(np.diff(_keys(prefixes), prepend=_NO_LEADER - 1))
    return np.append(starts, len(prefixes.tokens)), prefixes.tokens[starts]


def most_groups(num_rows: int) -> int:
    """Return how many groups a recorded step of `num_rows` rows has room for.

    One for the rows that share nothing, one for rows that only fill up, and one for every four rows
    of the next power of two.
    """
    # The kernel assumes that groups are as large as they are on average, and small groups gain
    # little. It is compiled for few such averages.
    return 2 + (1 << (num_rows - 1).bit_length()) // 4


def fits(prefixes: SharedPrefixes | None, num_rows: int) -> bool:
    """Return whether a recorded step of `num_rows` or more rows can share these prefixes."""
    if prefixes is None:
        return False
    return len(group_arrays(prefixes)[1]) < most_groups(num_rows)


def fixed_groups(
    prefixes: SharedPrefixes | None, num_rows: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return `group_arrays` of these rows and of others up to `num_rows`, which share nothing.

    int64 [most_groups + 1] and [most_groups]; the last groups are empty. Nothing is shared if
    `prefixes` is None or does not fit.
    """
    most = most_groups(num_rows)
    offsets, lengths = np.full(most + 1, num_rows), np.zeros(most, dtype=np.int64)
    offsets[0] = 0
    if prefixes is not None and fits(prefixes, num_rows):
        starts, tokens = group_arrays(prefixes)
        offsets[: len(starts)] = starts
        lengths[: len(tokens)] = tokens
    return offsets, lengths


def _keys(prefixes: SharedPrefixes) -> NDArray[np.int32]:
    """Return one number per row that is equal for all rows of a group, int32 [rows]."""
    return np.where(prefixes.tokens > 0, prefixes.leaders, np.int32(_NO_LEADER))


@dataclass(frozen=True, slots=True, eq=False)
class Reordered:
    """Steps whose row i is the job's row order[i]."""

    pending: Pending
    order: NDArray[np.intp]
    samples: NDArray[np.bool_]  # bool [rows], as they ran

    @property
    def is_done(self) -> bool:
        return self.pending.is_done

    def result(self) -> RowsResult:
        """As `Pending.result`, by the job's rows."""
        done = self.pending.result()
        columns = np.argsort(self.order[self.samples])
        return RowsResult(
            tokens=done.tokens[:, columns],
            logprobs={int(self.order[row]): each for row, each in done.logprobs.items()},
            prompt_logprobs={
                int(self.order[row]): each for row, each in done.prompt_logprobs.items()
            },
            is_broken=done.is_broken[columns],
            refused={int(self.order[row]): why for row, why in done.refused.items()},
            mask_wait_s=done.mask_wait_s,
            runs={int(self.order[row]): run for row, run in done.runs.items()},
            vectors={int(self.order[row]): each for row, each in done.vectors.items()},
            image_tokens=done.image_tokens,
            image_s=done.image_s,
        )
