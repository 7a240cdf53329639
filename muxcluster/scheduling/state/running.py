"""The sequences of one model as arrays over rows, so that a step costs no Python per row."""

import math

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import Side
from muxcluster.scheduling.state.requests import LiveRequest

TableRows = NDArray[np.int32]


_NO_ROWS: TableRows = np.empty(0, dtype=np.int32)

_MOST_CREDIT = 3.0  # tokens' worth of time that a sequence may save by being early
_MOST_DEBT = 1.0  # tokens' worth of time by which a late token makes the next one due earlier
_DAY_S = 86_400.0  # instead of no target, which is infinite

# One row of so many, rounded up, stays free of batch sequences for interactive ones that come;
# where there is but one row, it does not.
_ROWS_PER_SPARE = 8


class RunningTable:
    """State per row: every array has length num_rows unless a comment says otherwise.

    Read freely, but write through the methods: a unit asks every model several times a step which
    sequences are idle, so the answers are kept.
    """

    def __init__(
        self, max_seqs: int, max_model_len: int, *, num_more: int = 0, keeps_output: bool = True
    ) -> None:
        """max_seqs: rows that interactive sequences may hold. num_more: rows beside these.

        keeps_output: False where every output token is 0, in a simulator.
        """
        num_rows = max_seqs + num_more
        self.max_seqs, self.num_rows = max_seqs, num_rows
        self.keeps_output = keeps_output
        self.num_prompt = np.zeros(num_rows, dtype=np.int32)
        self.num_tokens = np.zeros(num_rows, dtype=np.int32)  # prompt and output
        self.num_computed = np.zeros(num_rows, dtype=np.int32)  # tokens whose KV is written
        self.max_total = np.zeros(num_rows, dtype=np.int32)  # num_tokens at which it ends by length
        self.most_computed = np.zeros(num_rows, dtype=np.int32)  # KV it may ever have; 0: free row
        self.seniority = np.zeros(num_rows, dtype=np.int64)  # see LiveRequest
        self.is_live = np.zeros(num_rows, dtype=np.bool_)
        self.in_job = np.zeros(num_rows, dtype=np.bool_)  # part of a running job
        self.is_prefilling = np.zeros(num_rows, dtype=np.bool_)  # until all known is computed
        self.is_aborted = np.zeros(num_rows, dtype=np.bool_)  # ends with its job
        self.is_suspect = np.zeros(num_rows, dtype=np.bool_)  # runs apart: faults.py
        self.is_batch = np.zeros(num_rows, dtype=np.bool_)
        self.is_lent = np.zeros(num_rows, dtype=np.bool_)  # gave blocks away: can be in no job
        self.is_written = np.zeros(num_rows, dtype=np.bool_)  # ended, but a job still writes there
        self.ignores_eos = np.zeros(num_rows, dtype=np.bool_)
        self.has_stops = np.zeros(num_rows, dtype=np.bool_)  # has stop ids of its own
        self.deadline_s = np.full(num_rows, np.inf)  # of its next token; inf: no target
        self.tpot_s = np.full(num_rows, np.inf)  # target; inf: none
        self.credit_s = np.zeros(num_rows)  # how early its tokens were since the first, bounded
        self.decode_running_s = np.zeros(num_rows)  # in decode jobs since it took the row
        self.is_constrained = np.zeros(num_rows, dtype=np.bool_)
        self.mask_wait_s = np.zeros(num_rows)  # the part of these that waited for masks
        # Output tokens, int32 [num_rows, max_model_len + 1]: pages never written cost no memory.
        # All 0, and not to be written, where they are not kept.
        shape = num_rows, max_model_len + 1
        nothing = np.broadcast_to(np.int32(0), shape)
        self.outputs = np.zeros(shape, dtype=np.int32) if keeps_output else nothing
        self.request_ids = np.empty(num_rows, dtype=np.object_)
        self.live: list[LiveRequest | None] = [None] * num_rows
        self._free = list(range(num_rows - 1, -1, -1))
        self.num_prefilling = 0
        self.num_batch = self.num_lent = self.num_written = self.num_suspects = 0
        self.has_aborted = False  # some live sequence is aborted
        # Some sequence has a deadline or stop ids, or one since the table was last empty had them.
        # Mostly none has, and the arrays need no look.
        self.has_targets = self.has_own_stops = False
        # Some sequence has a run of forced tokens to compute, or one since the table was last empty
        # had one.
        self.has_runs = False
        self.forget_idle()

    def forget_idle(self) -> None:
        """Forget the kept answers: which sequences are idle has changed."""
        self._prefilling: TableRows | None = None
        self._decoding: TableRows | None = None
        self._first_deadline_s: float | None = None

    @property
    def num_free(self) -> int:
        """Number of rows that no sequence holds."""
        return len(self._free)

    @property
    def num_open(self) -> int:
        """Number of free rows that interactive sequences may take."""
        return min(len(self._free), self.max_seqs - self.num_live + self.num_batch)

    @property
    def num_spare(self) -> int:
        """Number of free rows that batch sequences leave to interactive ones that come.

        An eighth of those that interactive ones may hold. Where batch sequences have rows beside
        these, as many as interactive ones hold now, so that their number may double.
        """
        most, held = self.max_seqs, self.num_live - self.num_batch
        eighth = min(self.num_rows - 1, -(-most // _ROWS_PER_SPARE))
        return min(most - held, max(eighth, min(held, self.num_rows - most)))

    def has_row(self, side: Side) -> bool:
        """True where a sequence of that side may take a row.

        Where batch sequences have no rows of their own, the packing alone bounds them.
        """
        if side is Side.LEFT:
            return self.num_open > 0
        return len(self._free) > (self.num_spare if self.num_rows > self.max_seqs else 0)

    @property
    def num_live(self) -> int:
        """Number of sequences that hold a row."""
        return self.num_rows - len(self._free) - self.num_written

    @property
    def num_uncomputed(self) -> int:
        """Number of tokens to compute before those that are prefilling decode."""
        if not self.num_prefilling:
            return 0
        rows = self.is_live & self.is_prefilling
        return int((self.num_tokens[rows] - self.num_computed[rows]).sum())

    @property
    def next_free(self) -> int:
        """The row that `occupy` takes next; there must be one."""
        return self._free[-1]

    def at(self, row: int) -> LiveRequest:
        """Return the sequence that holds `row`."""
        live = self.live[row]
        assert live is not None, f"row {row} is empty"
        return live

    def occupy(self, live: LiveRequest, num_computed: int, max_total: int) -> int:
        """Give `live` the next free row with `num_computed` tokens' KV already there."""
        row = self._free.pop()
        live.row = row
        sampling = live.request.sampling
        self.num_prompt[row] = live.num_prompt
        self.num_tokens[row] = live.num_tokens
        self.num_computed[row] = num_computed
        self.max_total[row] = max_total
        self.most_computed[row] = max_total - 1
        self.seniority[row] = live.seniority
        self.is_live[row] = self.is_prefilling[row] = True
        self.num_prefilling += 1
        self.in_job[row] = self.is_aborted[row] = False
        self.is_batch[row] = live.side is Side.RIGHT
        self.num_batch += int(self.is_batch[row])
        self._suspect(row, is_suspect=live.prefills_alone)
        self.decode_running_s[row] = self.credit_s[row] = self.mask_wait_s[row] = 0.0
        self.is_constrained[row] = sampling.constraint is not None
        self.ignores_eos[row] = not sampling.ends_at_eos
        self.has_stops[row] = bool(sampling.stop_token_ids)
        self.has_own_stops |= bool(sampling.stop_token_ids)
        self.deadline_s[row] = live.deadline_s
        self.tpot_s[row] = np.inf if live.slo is None else live.slo.tpot_s
        self.has_targets |= live.slo is not None
        if self.keeps_output:
            self.outputs[row, : len(live.output)] = live.output
        self.request_ids[row] = live.request.request_id
        self.live[row] = live
        self.forget_idle()
        return row

    def vacate(self, row: int, *, is_written: bool = False) -> LiveRequest:
        """Take the row from its sequence, which keeps its output.

        is_written: a running job still writes to it, so it is not free before `end_writes`.
        """
        live = self.at(row)
        output = self.output(row)
        live.output = output.copy() if self.keeps_output else output
        live.deadline_s = float(self.deadline_s[row])
        live.account.decode_running_s += float(self.decode_running_s[row])
        live.account.mask_wait_s += float(self.mask_wait_s[row])
        live.row = self.live[row] = self.request_ids[row] = None
        self.num_prefilling -= int(self.is_prefilling[row])
        self.num_batch -= int(self.is_batch[row])
        self.is_live[row] = self.is_batch[row] = False
        self.in_job[row] = self.is_written[row] = is_written
        self.most_computed[row] = 0
        self._suspect(row, is_suspect=False)
        if self.is_lent[row]:
            self.set_whole(row)
        if self.has_aborted:
            self.has_aborted = bool((self.is_aborted & self.is_live).any())
        if is_written:
            self.num_written += 1
        else:
            self._free.append(row)
        if self.num_live == 0:
            self.has_targets = self.has_own_stops = self.has_runs = False
        self.forget_idle()
        return live

    def end_writes(self, row: int) -> None:
        """Free the row of an ended sequence: the job that wrote to it has ended."""
        self.in_job[row] = self.is_written[row] = False
        self.num_written -= 1
        self._free.append(row)

    def start_job(self, rows: TableRows) -> None:
        self.in_job[rows.astype(np.intp)] = True
        if rows is self._decoding:
            self._decoding, self._first_deadline_s = _NO_ROWS, None
        else:
            self.forget_idle()

    def end_job(self, rows: TableRows, *, are_decoding: bool = False) -> None:
        """Note that the job of `rows` ran. are_decoding: none of them is prefilling."""
        self.in_job[rows.astype(np.intp)] = False
        if are_decoding and self._decoding is _NO_ROWS and not self.num_suspects:
            self._decoding, self._first_deadline_s = rows, None
        else:
            self.forget_idle()

    def abort(self, row: int) -> None:
        """Let the sequence end with the job that it is in."""
        self.is_aborted[row] = self.has_aborted = True

    def set_back(self, row: int) -> None:
        """Note that the job of `row` failed: it is as before the job, and a suspect."""
        self._suspect(row, is_suspect=True)
        self.in_job[row] = False
        self.forget_idle()

    def clear(self, row: int) -> None:
        """Make the sequence a suspect no longer."""
        self._suspect(row, is_suspect=False)
        self.forget_idle()

    def set_lent(self, row: int) -> None:
        """Note that the sequence lent blocks."""
        if not self.is_lent[row]:
            self.is_lent[row] = True
            self.num_lent += 1
            self.forget_idle()

    def set_whole(self, row: int) -> None:
        """Note that a lent sequence has all its blocks again."""
        self.is_lent[row] = False
        self.num_lent -= 1
        self.forget_idle()

    def add_running(self, rows: TableRows, seconds: float, *, are_decoding: bool = False) -> None:
        """Add the time of a job that ended just now to its `rows`; see `end_job`."""
        if self.num_prefilling and not are_decoding:
            rows = rows[~self.is_prefilling[rows]]
        self.decode_running_s[rows.astype(np.intp)] += seconds

    def add_mask_wait(self, rows: TableRows, seconds: float) -> None:
        """Add a job's wait for masks to those of its `rows` that need some and decode."""
        needs = self.is_constrained[rows] & ~self.is_prefilling[rows]
        self.mask_wait_s[rows[needs].astype(np.intp)] += seconds

    def end_prefill(self, row: int) -> None:
        """Let the sequence decode from now on."""
        self.num_prefilling -= int(self.is_prefilling[row])
        self.is_prefilling[row] = False
        self._suspect(row, is_suspect=self.at(row).suspicion is not None)
        self.forget_idle()

    def _suspect(self, row: int, *, is_suspect: bool) -> None:
        self.num_suspects += int(is_suspect) - int(self.is_suspect[row])
        self.is_suspect[row] = is_suspect

    def append(self, rows: TableRows, tokens: NDArray[np.int32], width: int, now: float) -> None:
        """Add `width` output tokens to each of `rows`; all but the last are computed.

        tokens: int32 [len(rows) * width], row after row.
        """
        places = rows.astype(np.intp)  # once: numpy would convert at each use
        before = self.num_tokens[places]
        after = before + np.int32(width)
        self.num_tokens[places] = after
        self.num_computed[places] = after - np.int32(1)
        self.set_deadlines(rows, now)
        if not self.keeps_output:
            return
        first = before - self.num_prompt[places]
        if width == 1:
            self.outputs[places, first] = tokens
        else:
            columns = first[:, None] + np.arange(width, dtype=np.int32)
            self.outputs[places[:, None], columns] = tokens.reshape(-1, width)

    def append_some(
        self,
        rows: TableRows,
        tokens: NDArray[np.int32],
        counts: NDArray[np.int32],
        computed: NDArray[np.int32],
        now: float,
    ) -> None:
        """Add counts[i] output tokens to rows[i], of whose tokens computed[i] have KV.

        tokens: int32 [sum(counts)], row after row. Nothing more is computed of aborted ones.
        """
        owner = np.arange(len(rows)).repeat(counts)
        positions = np.arange(len(tokens)) - (counts.cumsum() - counts)[owner]
        owners = rows[owner]
        if self.keeps_output:
            places = self.num_tokens[owners] - self.num_prompt[owners] + positions
            self.outputs[owners, places] = tokens
        self.num_tokens[rows] += counts
        alive = ~self.is_aborted[rows]
        self.num_computed[rows[alive]] = computed[alive]
        self.has_runs |= bool((alive & (counts > 1) & (computed < self.num_tokens[rows] - 1)).any())
        self.set_deadlines(rows[counts > 0], now)

    def append_zeros(self, rows: TableRows, count: int, now: float, running_s: float) -> None:
        """Add `count` tokens of id 0 to each of `rows`, the last at `now`.

        running_s: seconds of the jobs that computed them, together.
        """
        if self.keeps_output:
            places = self.num_tokens[rows] - self.num_prompt[rows]
            columns = places[:, None] + np.arange(count, dtype=np.int32)
            self.outputs[rows[:, None], columns] = 0
        self.num_tokens[rows] += np.int32(count)
        self.num_computed[rows] += np.int32(count)
        self.set_deadlines(rows, now)
        self.add_running(rows, running_s, are_decoding=True)

    def set_deadlines(self, rows: TableRows, now: float) -> None:
        """Set when the next token of `rows`, which got one at `now`, is due: its TPOT later.

        Earlier where that one was late: the target is of the mean over tokens.
        """
        if not self.has_targets:
            return
        places = rows.astype(np.intp)  # once: numpy would convert at each use
        tpot_s = self.tpot_s[places]
        earned_s = self.credit_s[places] + self.deadline_s[places] - now
        if self.num_prefilling:
            earned_s[self.is_prefilling[places]] = 0.0
        token_s = np.minimum(tpot_s, _DAY_S)
        self.credit_s[places] = np.minimum(np.maximum(earned_s, 0.0), _MOST_CREDIT * token_s)
        debt_s = np.maximum(np.minimum(earned_s, 0.0), -_MOST_DEBT * token_s)
        self.deadline_s[places] = now + tpot_s + debt_s
        self._first_deadline_s = None

    def leeway_s(self, rows: TableRows) -> NDArray[np.float64]:
        """Return how much later than due the next token of each may be: credit, and a debt."""
        debt_s: NDArray[np.float64] = _MOST_DEBT * np.minimum(self.tpot_s[rows], _DAY_S)
        return self.credit_s[rows] + debt_s

    def has_suspect(self, rows: TableRows) -> bool:
        return self.num_suspects > 0 and bool(self.is_suspect[rows].any())

    def output(self, row: int) -> NDArray[np.int32]:
        """Return the output tokens so far, int32 [n]; a view."""
        return self.outputs[row, : self.num_tokens[row] - self.num_prompt[row]]

    def uncomputed(self, rows: TableRows) -> NDArray[np.int32]:
        """Return the known tokens of `rows` without KV, int32 [rows].

        Where they decode that is one, and more where the last ones were forced.
        """
        if not self.has_runs:
            return np.ones(len(rows), dtype=np.int32)
        return self.num_tokens[rows] - self.num_computed[rows]

    def within(self, rows: TableRows, num_tokens: int, *, least: int = 0) -> TableRows:
        """Return the first of `rows` that compute at most so many tokens together.

        least: of the rows, whatever they compute.
        """
        if not self.has_runs:
            return rows[: max(least, num_tokens, 0)]
        most = int(self.uncomputed(rows).cumsum().searchsorted(num_tokens, side="right"))
        return rows[: max(least, most)]

    def tokens(self, row: int) -> NDArray[np.int32]:
        """Return the prompt, then the output so far, int32 [num_tokens]."""
        prompt, output = self.at(row).request.prompt_tokens, self.output(row)
        return np.concatenate((prompt, output)) if len(output) else prompt

    def idle(self) -> TableRows:
        """Return sequences in no running job, ascending; lent ones and suspects too."""
        return _where(self.is_live & ~self.in_job)

    def idle_batch(self) -> TableRows:
        """Return sequences of the batch class in no running job, ascending."""
        return _where(self.is_batch & ~self.in_job)

    def idle_lent(self) -> TableRows:
        """Return sequences that lent blocks, ascending."""
        return _where(self.is_lent) if self.num_lent else _NO_ROWS

    def idle_prefilling(self) -> TableRows:
        """Return sequences in no running job with prompt left to compute, most senior first.

        Neither suspects nor lent ones; not to be written, like `idle_decoding`.
        """
        if self._prefilling is None:
            if not self.num_prefilling:
                return _NO_ROWS
            busy = self.in_job | self.is_suspect | self.is_lent
            rows = _where(self.is_live & self.is_prefilling & ~busy)
            self._prefilling = self.by_seniority(rows)
        return self._prefilling

    def idle_decoding(self) -> TableRows:
        """Return sequences in no running job whose next token can be decoded, ascending.

        No suspects.
        """
        if self._decoding is None:
            busy = self.in_job | self.is_prefilling | self.is_suspect | self.is_lent
            self._decoding = _where(self.is_live & ~busy)
        return self._decoding

    def idle_suspects(self, *, are_prefilling: bool) -> TableRows:
        """Return suspects in no running job that lent no blocks, most senior first."""
        if not self.num_suspects:
            return _NO_ROWS
        mine = self.is_suspect & (self.is_prefilling == are_prefilling)
        return self.by_seniority(_where(mine & ~(self.in_job | self.is_lent)))

    def first_deadline_s(self) -> float:
        """Return the earliest deadline among `idle_decoding`, inf where there is none."""
        if not self.has_targets:
            return math.inf
        if self._first_deadline_s is None:
            deadlines = self.deadline_s[self.idle_decoding()]
            self._first_deadline_s = float(deadlines.min(initial=np.inf))
        return self._first_deadline_s

    def by_seniority(self, rows: TableRows) -> TableRows:
        """Return `rows`, most senior first."""
        if len(rows) < 2:
            return rows
        return rows[self.seniority[rows].argsort()]

    def check(self) -> None:
        """Raise AssertionError where the arrays contradict each other."""
        live = np.flatnonzero(self.is_live)
        num_taken = len(live) + self.num_written
        assert num_taken + len(self._free) == self.num_rows, "a row is lost"
        assert not self.is_live[self._free].any(), "a live row is on the free list"
        held = self.num_live - self.num_batch
        assert held <= self.max_seqs, "interactive sequences hold rows of batch ones"
        assert self.is_written.sum() == self.num_written, "rows that are written to are miscounted"
        assert not (self.is_written & self.is_live).any(), "an ended sequence is live"
        assert (self.in_job[~self.is_live] == self.is_written[~self.is_live]).all(), (
            "an empty row is in a job"
        )
        assert self.has_aborted == self.is_aborted[live].any(), "aborted sequences are forgotten"
        assert self.num_suspects == self.is_suspect.sum(), "suspects are miscounted"
        assert not (self.is_suspect & ~self.is_live).any(), "an empty row holds a suspect"
        assert self.has_own_stops or not self.has_stops[live].any(), "stop ids are forgotten"
        has_target = (np.minimum(self.deadline_s, self.tpot_s)[live] < np.inf).any()
        assert self.has_targets or not has_target, "deadlines are forgotten"
        assert self.num_prefilling == self.is_prefilling[live].sum(), "prefills are miscounted"
        counts = self.is_batch.sum(), self.is_lent.sum()
        assert counts == (self.num_batch, self.num_lent), "batch or lent ones are miscounted"
        assert not self.in_job[self.is_lent].any(), "a lent sequence runs"
        for row in live.tolist():
            assert self.at(row).row == row, f"row {row} and its request disagree"
        tokens, computed = self.num_tokens[live], self.num_computed[live]
        assert (computed < tokens).all(), "a sequence has nothing left to compute"
        assert (tokens < self.max_total[live]).all(), "a sequence outlived its end"
        is_next = computed == tokens - 1
        if self.has_runs:
            is_next |= self.is_constrained[live]
        assert is_next[~self.is_prefilling[live]].all(), "a decoding sequence lags"
        self._check_idle()

    def _check_idle(self) -> None:
        prefilling, decoding = self.idle_prefilling(), self.idle_decoding()
        first_s = self.first_deadline_s()
        self.forget_idle()
        assert np.array_equal(prefilling, self.idle_prefilling()), "kept prefills are out of date"
        assert np.array_equal(decoding, self.idle_decoding()), "kept decodes are out of date"
        assert first_s == self.first_deadline_s(), "the kept deadline is out of date"


def _where(mask: NDArray[np.bool_]) -> TableRows:
    return mask.nonzero()[0].astype(np.int32)
