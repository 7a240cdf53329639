"""The sequences of one model as arrays over slots, so that a step costs no Python per row."""

import math

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import Side
from muxcluster.scheduling.state.live import LiveRequest

Slots = NDArray[np.int32]


_NO_SLOTS: Slots = np.empty(0, dtype=np.int32)

_MOST_CREDIT = 3.0  # tokens' worth of time that a sequence may save by being early
_MOST_DEBT = 0.5  # tokens' worth of time by which a late token makes the next one due earlier
_DAY_S = 86_400.0  # instead of no target, which is infinite


class SlotTable:
    """State per slot: every array has length max_seqs unless a comment says otherwise.

    Read freely, but write through the methods: a unit asks every model several times a step which
    sequences are idle, so the answers are kept.
    """

    def __init__(self, max_seqs: int, max_model_len: int, *, keeps_output: bool = True) -> None:
        """keeps_output: False where every output token is 0, in a simulator."""
        self.max_seqs = max_seqs
        self.keeps_output = keeps_output
        self.num_prompt = np.zeros(max_seqs, dtype=np.int32)
        self.num_tokens = np.zeros(max_seqs, dtype=np.int32)  # prompt and output
        self.num_computed = np.zeros(max_seqs, dtype=np.int32)  # tokens whose KV is written
        self.max_total = np.zeros(max_seqs, dtype=np.int32)  # num_tokens at which it ends by length
        self.most_computed = np.zeros(max_seqs, dtype=np.int32)  # KV it may ever have; 0: free slot
        self.seniority = np.zeros(max_seqs, dtype=np.int64)  # see LiveRequest
        self.is_live = np.zeros(max_seqs, dtype=np.bool_)
        self.in_job = np.zeros(max_seqs, dtype=np.bool_)  # part of a running job
        self.is_prefilling = np.zeros(max_seqs, dtype=np.bool_)  # until all known is computed
        self.is_aborted = np.zeros(max_seqs, dtype=np.bool_)  # ends with its job
        self.is_suspect = np.zeros(max_seqs, dtype=np.bool_)  # runs apart: faults/isolation.py
        self.is_batch = np.zeros(max_seqs, dtype=np.bool_)
        self.is_lent = np.zeros(max_seqs, dtype=np.bool_)  # gave blocks away: can be in no job
        self.is_written = np.zeros(max_seqs, dtype=np.bool_)  # ended, but a job still writes there
        self.ignores_eos = np.zeros(max_seqs, dtype=np.bool_)
        self.has_stops = np.zeros(max_seqs, dtype=np.bool_)  # has stop ids of its own
        self.deadline_s = np.full(max_seqs, np.inf)  # of its next token; inf: no target
        self.tpot_s = np.full(max_seqs, np.inf)  # target; inf: none
        self.credit_s = np.zeros(max_seqs)  # how early its tokens were since the first, bounded
        self.decode_running_s = np.zeros(max_seqs)  # in decode jobs since it took the slot
        # Output tokens, int32 [max_seqs, max_model_len + 1]: pages never written cost no memory.
        # All 0, and not to be written, where they are not kept.
        shape = max_seqs, max_model_len + 1
        nothing = np.broadcast_to(np.int32(0), shape)
        self.outputs = np.zeros(shape, dtype=np.int32) if keeps_output else nothing
        self.request_ids = np.empty(max_seqs, dtype=np.object_)
        self.live: list[LiveRequest | None] = [None] * max_seqs
        self._free = list(range(max_seqs - 1, -1, -1))
        self.num_prefilling = 0
        self.num_batch = self.num_lent = self.num_written = self.num_suspects = 0
        self.has_aborted = False  # some live sequence is aborted
        # Some sequence has a deadline or stop ids, or one since the table was last empty had them.
        # Mostly none has, and the arrays need no look.
        self.has_targets = self.has_own_stops = False
        self.forget_idle()

    def forget_idle(self) -> None:
        """Forget the kept answers: which sequences are idle has changed."""
        self._prefilling: Slots | None = None
        self._decoding: Slots | None = None
        self._first_deadline_s: float | None = None

    @property
    def num_free(self) -> int:
        """Number of slots that no sequence holds."""
        return len(self._free)

    @property
    def num_live(self) -> int:
        """Number of sequences that hold a slot."""
        return self.max_seqs - len(self._free) - self.num_written

    @property
    def num_uncomputed(self) -> int:
        """Number of tokens to compute before those that are prefilling decode."""
        if not self.num_prefilling:
            return 0
        slots = self.is_live & self.is_prefilling
        return int((self.num_tokens[slots] - self.num_computed[slots]).sum())

    @property
    def next_free(self) -> int:
        """The slot that `occupy` takes next; there must be one."""
        return self._free[-1]

    def at(self, slot: int) -> LiveRequest:
        """Return the sequence that holds `slot`."""
        live = self.live[slot]
        assert live is not None, f"slot {slot} is empty"
        return live

    def occupy(self, live: LiveRequest, num_computed: int, max_total: int) -> int:
        """Give `live` the next free slot with `num_computed` tokens' KV already there."""
        slot = self._free.pop()
        live.slot = slot
        sampling = live.request.sampling
        self.num_prompt[slot] = live.num_prompt
        self.num_tokens[slot] = live.num_tokens
        self.num_computed[slot] = num_computed
        self.max_total[slot] = max_total
        self.most_computed[slot] = max_total - 1
        self.seniority[slot] = live.seniority
        self.is_live[slot] = self.is_prefilling[slot] = True
        self.num_prefilling += 1
        self.in_job[slot] = self.is_aborted[slot] = False
        self.is_batch[slot] = live.side is Side.RIGHT
        self.num_batch += int(self.is_batch[slot])
        self._suspect(slot, is_suspect=live.prefills_alone)
        self.decode_running_s[slot] = self.credit_s[slot] = 0.0
        self.ignores_eos[slot] = sampling.ignore_eos
        self.has_stops[slot] = bool(sampling.stop_token_ids)
        self.has_own_stops |= bool(sampling.stop_token_ids)
        self.deadline_s[slot] = live.deadline_s
        self.tpot_s[slot] = np.inf if live.slo is None else live.slo.tpot_s
        self.has_targets |= live.slo is not None
        if self.keeps_output:
            self.outputs[slot, : len(live.output)] = live.output
        self.request_ids[slot] = live.request.request_id
        self.live[slot] = live
        self.forget_idle()
        return slot

    def vacate(self, slot: int, *, is_written: bool = False) -> LiveRequest:
        """Take the slot from its sequence, which keeps its output.

        is_written: a running job still writes to it, so it is not free before `end_writes`.
        """
        live = self.at(slot)
        output = self.output(slot)
        live.output = output.copy() if self.keeps_output else output
        live.deadline_s = float(self.deadline_s[slot])
        live.account.decode_running_s += float(self.decode_running_s[slot])
        live.slot = self.live[slot] = self.request_ids[slot] = None
        self.num_prefilling -= int(self.is_prefilling[slot])
        self.num_batch -= int(self.is_batch[slot])
        self.is_live[slot] = self.is_batch[slot] = False
        self.in_job[slot] = self.is_written[slot] = is_written
        self.most_computed[slot] = 0
        self._suspect(slot, is_suspect=False)
        if self.is_lent[slot]:
            self.set_whole(slot)
        if self.has_aborted:
            self.has_aborted = bool((self.is_aborted & self.is_live).any())
        if is_written:
            self.num_written += 1
        else:
            self._free.append(slot)
        if self.num_live == 0:
            self.has_targets = self.has_own_stops = False
        self.forget_idle()
        return live

    def end_writes(self, slot: int) -> None:
        """Free the slot of an ended sequence: the job that wrote to it has ended."""
        self.in_job[slot] = self.is_written[slot] = False
        self.num_written -= 1
        self._free.append(slot)

    def start_job(self, slots: Slots) -> None:
        """Note that `slots` are in a running job from now on."""
        self.in_job[slots.astype(np.intp)] = True
        if slots is self._decoding:
            self._decoding, self._first_deadline_s = _NO_SLOTS, None
        else:
            self.forget_idle()

    def end_job(self, slots: Slots, *, are_decoding: bool = False) -> None:
        """Note that the job of `slots` ran. are_decoding: none of them is prefilling."""
        self.in_job[slots.astype(np.intp)] = False
        if are_decoding and self._decoding is _NO_SLOTS and not self.num_suspects:
            self._decoding, self._first_deadline_s = slots, None
        else:
            self.forget_idle()

    def abort(self, slot: int) -> None:
        """Let the sequence end with the job that it is in."""
        self.is_aborted[slot] = self.has_aborted = True

    def set_back(self, slot: int) -> None:
        """Note that the job of `slot` failed: it is as before the job, and a suspect."""
        self._suspect(slot, is_suspect=True)
        self.in_job[slot] = False
        self.forget_idle()

    def clear(self, slot: int) -> None:
        """Make the sequence a suspect no longer."""
        self._suspect(slot, is_suspect=False)
        self.forget_idle()

    def set_lent(self, slot: int) -> None:
        """Note that the sequence lent blocks."""
        if not self.is_lent[slot]:
            self.is_lent[slot] = True
            self.num_lent += 1
            self.forget_idle()

    def set_whole(self, slot: int) -> None:
        """Note that a lent sequence has all its blocks again."""
        self.is_lent[slot] = False
        self.num_lent -= 1
        self.forget_idle()

    def add_running(self, slots: Slots, seconds: float, *, are_decoding: bool = False) -> None:
        """Add the time of a job that ended just now to its `slots`; see `end_job`."""
        if self.num_prefilling and not are_decoding:
            slots = slots[~self.is_prefilling[slots]]
        self.decode_running_s[slots.astype(np.intp)] += seconds

    def end_prefill(self, slot: int) -> None:
        """Let the sequence decode from now on."""
        self.num_prefilling -= int(self.is_prefilling[slot])
        self.is_prefilling[slot] = False
        self._suspect(slot, is_suspect=self.at(slot).suspicion is not None)
        self.forget_idle()

    def _suspect(self, slot: int, *, is_suspect: bool) -> None:
        self.num_suspects += int(is_suspect) - int(self.is_suspect[slot])
        self.is_suspect[slot] = is_suspect

    def append(self, slots: Slots, tokens: NDArray[np.int32], width: int, now: float) -> None:
        """Add `width` output tokens to each of `slots`; all but the last are computed.

        tokens: int32 [len(slots) * width], row after row.
        """
        places = slots.astype(np.intp)  # once: numpy would convert at each use
        before = self.num_tokens[places]
        after = before + np.int32(width)
        self.num_tokens[places] = after
        self.num_computed[places] = after - np.int32(1)
        self.set_deadlines(slots, now)
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
        slots: Slots,
        tokens: NDArray[np.int32],
        counts: NDArray[np.int32],
        computed: NDArray[np.int32],
        now: float,
    ) -> None:
        """Add counts[i] output tokens to slots[i], of whose tokens computed[i] have KV.

        tokens: int32 [sum(counts)], row after row. Nothing more is computed of aborted ones.
        """
        owner = np.arange(len(slots)).repeat(counts)
        positions = np.arange(len(tokens)) - (counts.cumsum() - counts)[owner]
        owners = slots[owner]
        if self.keeps_output:
            places = self.num_tokens[owners] - self.num_prompt[owners] + positions
            self.outputs[owners, places] = tokens
        self.num_tokens[slots] += counts
        alive = ~self.is_aborted[slots]
        self.num_computed[slots[alive]] = computed[alive]
        self.set_deadlines(slots[counts > 0], now)

    def append_zeros(self, slots: Slots, count: int, now: float, running_s: float) -> None:
        """Add `count` tokens of id 0 to each of `slots`, the last at `now`.

        running_s: seconds of the jobs that computed them, together.
        """
        if self.keeps_output:
            places = self.num_tokens[slots] - self.num_prompt[slots]
            columns = places[:, None] + np.arange(count, dtype=np.int32)
            self.outputs[slots[:, None], columns] = 0
        self.num_tokens[slots] += np.int32(count)
        self.num_computed[slots] += np.int32(count)
        self.set_deadlines(slots, now)
        self.add_running(slots, running_s, are_decoding=True)

    def set_deadlines(self, slots: Slots, now: float) -> None:
        """Set when the next token of `slots`, which got one at `now`, is due: its TPOT later.

        Earlier where that one was late: the target is of the mean over tokens.
        """
        if not self.has_targets:
            return
        places = slots.astype(np.intp)  # once: numpy would convert at each use
        tpot_s = self.tpot_s[places]
        earned_s = self.credit_s[places] + self.deadline_s[places] - now
        if self.num_prefilling:
            earned_s[self.is_prefilling[places]] = 0.0
        token_s = np.minimum(tpot_s, _DAY_S)
        self.credit_s[places] = np.minimum(np.maximum(earned_s, 0.0), _MOST_CREDIT * token_s)
        debt_s = np.maximum(np.minimum(earned_s, 0.0), -_MOST_DEBT * token_s)
        self.deadline_s[places] = now + tpot_s + debt_s
        self._first_deadline_s = None

    def leeway_s(self, slots: Slots) -> NDArray[np.float64]:
        """Return how much later than due the next token of each may be: credit, and a debt."""
        debt_s: NDArray[np.float64] = _MOST_DEBT * np.minimum(self.tpot_s[slots], _DAY_S)
        return self.credit_s[slots] + debt_s

    def has_suspect(self, slots: Slots) -> bool:
        """Return True where one of `slots` is a suspect."""
        return self.num_suspects > 0 and bool(self.is_suspect[slots].any())

    def output(self, slot: int) -> NDArray[np.int32]:
        """Return the output tokens so far, int32 [n]; a view."""
        return self.outputs[slot, : self.num_tokens[slot] - self.num_prompt[slot]]

    def tokens(self, slot: int) -> NDArray[np.int32]:
        """Return the prompt, then the output so far, int32 [num_tokens]."""
        prompt, output = self.at(slot).request.prompt_tokens, self.output(slot)
        return np.concatenate((prompt, output)) if len(output) else prompt

    def idle(self) -> Slots:
        """Return sequences in no running job, ascending; lent ones and suspects too."""
        return _where(self.is_live & ~self.in_job)

    def idle_batch(self) -> Slots:
        """Return sequences of the batch class in no running job, ascending."""
        return _where(self.is_batch & ~self.in_job)

    def idle_lent(self) -> Slots:
        """Return sequences that lent blocks, ascending."""
        return _where(self.is_lent) if self.num_lent else _NO_SLOTS

    def idle_prefilling(self) -> Slots:
        """Return sequences in no running job with prompt left to compute, most senior first.

        Neither suspects nor lent ones; not to be written, like `idle_decoding`.
        """
        if self._prefilling is None:
            if not self.num_prefilling:
                return _NO_SLOTS
            busy = self.in_job | self.is_suspect | self.is_lent
            slots = _where(self.is_live & self.is_prefilling & ~busy)
            self._prefilling = self.by_seniority(slots)
        return self._prefilling

    def idle_decoding(self) -> Slots:
        """Return sequences in no running job whose next token can be decoded, ascending.

        No suspects.
        """
        if self._decoding is None:
            busy = self.in_job | self.is_prefilling | self.is_suspect | self.is_lent
            self._decoding = _where(self.is_live & ~busy)
        return self._decoding

    def idle_suspects(self, *, are_prefilling: bool) -> Slots:
        """Return suspects in no running job that lent no blocks, most senior first."""
        if not self.num_suspects:
            return _NO_SLOTS
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

    def by_seniority(self, slots: Slots) -> Slots:
        """Return `slots`, most senior first."""
        if len(slots) < 2:
            return slots
        return slots[self.seniority[slots].argsort()]


def _where(mask: NDArray[np.bool_]) -> Slots:
    return mask.nonzero()[0].astype(np.int32)
