"""ADBS where sharing the SMs pays, `mixed` where it does not, as measured (design.md §4)."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from muxcluster.core.job import Job, Phase
from muxcluster.core.served import SharingStats
from muxcluster.scheduling.lanes.adbs import AdbsLane
from muxcluster.scheduling.lanes.mixed import MixedLane
from muxcluster.scheduling.lanes.view import LaneView, Proposal, Repetition
from muxcluster.scheduling.steptime.line import work_of
from muxcluster.scheduling.steptime.model import StepTimes

_JOBS = 64  # that a gain is measured over; about as many are remembered
_KEPT = 1 - 1 / _JOBS
_MARGIN = 0.02  # by which a gain must be worse before anything changes

# Sharing that did not pay is tried again after this long, then after twice as long each time.
_RETRY_S, _LONGEST_S = 120.0, 3600.0
# Sharing that pays is interrupted after this long, then after twice as long each time, to measure
# mixed jobs again: a machine may be another one by then (its clocks, its neighbours).
_RECHECK_S = 60.0


class Gain:
    """Seconds that jobs would have taken in other ways, over the seconds in which any ran."""

    def __init__(self) -> None:
        self.num_jobs = 0
        self._alone_s = self._mixed_s = self._busy_s = 0.0

    def add(self, seconds: "Seconds", busy_s: float, num_jobs: int = 1) -> None:
        """Add jobs that ended, all alike.

        busy_s: seconds with some job running since the last one ended, of each.
        """
        kept = _KEPT**num_jobs
        added = (1 - kept) / (1 - _KEPT)
        self.num_jobs += num_jobs
        self._alone_s = kept * self._alone_s + added * seconds.alone_s
        self._mixed_s = kept * self._mixed_s + added * seconds.mixed_s
        self._busy_s = kept * self._busy_s + added * busy_s

    @property
    def is_measured(self) -> bool:
        """Enough jobs ended."""
        return self.num_jobs >= _JOBS

    @property
    def over_alone(self) -> float:
        """How much faster than one after another; 1 while nothing is known."""
        return self._alone_s / self._busy_s if self._busy_s > 0 else 1.0

    @property
    def over_mixed(self) -> float:
        """How much faster than as mixed jobs with the same prompts and rows; 1: not known."""
        return self._mixed_s / self._busy_s if self._busy_s > 0 else 1.0


class Seconds(NamedTuple):
    """What a job would take on all SMs without neighbours, as predicted."""

    alone_s: float  # its prompts, then its decodes; 0: not known
    mixed_s: float  # what it adds to mixed jobs of the same prompts and rows


class SharingJudge:
    """Decides whether a unit's jobs share the SMs or run one after another, as `mixed` jobs.

    Mixed jobs gain by reading the weights once for prompts and decodes, jobs side by side by
    filling SMs that one of them leaves idle. MuxServe assumes that the latter is more; on a GPU
    that one model saturates, it is not. A unit starts with mixed jobs, which also tell what each
    model's jobs take on all SMs; then it shares, and goes on as long as that is faster than mixed
    jobs would be, and than one job after another.

    Both ways are compared at the same batch, token by token: the seconds in which shared jobs ran
    against those that the very same prompts and rows would take as mixed jobs, each prefill joined
    to a decode of its model. What that takes is predicted, by lines that mixed jobs taught; how far
    off the lines are is measured while mixed jobs run: before a trial, and again now and then while
    sharing goes on, with a trial after it, so that both ways are measured one after the other.
    Measured gains of the two ways, each at its own batches, are not comparable: small prefills cost
    more a token alone, and a way that makes many of them would look better by it.

    Works at any load: what is compared is the time of jobs, not throughput, which is the same both
    ways where requests are few.
    """

    def __init__(self, times: StepTimes, *, learns: bool) -> None:
        """times: predictions; learns: nobody else tells them of jobs that ended."""
        self.shares = False  # what the unit should do now
        self.shared, self.mixed = Gain(), Gain()
        self._times, self._learns = times, learns
        # By model, the seconds of its last decode, which the next prefill would have joined
        self._open_decode_s: dict[str, float] = {}
        self._last_end_s = 0.0
        self._retry_s, self._next_trial_s = _RETRY_S, 0.0
        self._recheck_s, self._next_recheck_s = _RECHECK_S, math.inf

    def ended(self, job: Job, seconds: float, running_since_s: float, now: float) -> None:
        """`job` ran for `seconds`, to its end.

        running_since_s: the first start among it and the jobs that still run.
        """
        busy_s = now - max(running_since_s, self._last_end_s)
        self._last_end_s = now
        if self._learns and job.share == 1.0 and job.rows.drafts is None:
            self._times.observe(job, seconds)
        found = self._seconds(job)
        if found.alone_s == 0:
            self.shares = False  # mixed jobs will tell
            return
        gain = self.mixed if job.phase is Phase.MIXED else self.shared
        gain.add(found, busy_s)
        self._decide(now)

    @property
    def steady_until_s(self) -> float:
        """When the decision may change at the earliest, if jobs only repeat themselves.

        Jobs that repeat gain what they gained before, until the other way is tried.
        """
        gain = self.shared if self.shares else self.mixed
        if not gain.is_measured:
            return -math.inf
        return self._next_recheck_s if self.shares else self._next_trial_s

    def repeated(self, repetitions: Sequence[Repetition], now: float) -> None:
        """Count jobs that only repeated themselves, as `ended` would each of them.

        What they gained is counted for all of them at once, at their end.
        """
        ran = [each for each in repetitions if each.count]
        if not ran:
            return
        since_s = max(self._last_end_s, min(each.end_s - each.running_s for each in ran))
        self._last_end_s = max(each.end_s for each in ran)
        num_jobs = sum(each.count for each in ran)
        busy_s = max(0.0, self._last_end_s - since_s) / num_jobs
        for each in ran:
            gain = self.mixed if each.job.phase is Phase.MIXED else self.shared
            gain.add(self._seconds(each.job), busy_s, each.count)
        self._decide(now)

    def stats(self) -> SharingStats:
        """Return both gains over one job after another: of the same jobs while the unit shares."""
        if self.shares and self.shared.is_measured:
            shared = self.shared.over_alone
            return SharingStats(True, shared, shared / self.shared.over_mixed)
        return SharingStats(self.shares, self.shared.over_alone, self.mixed.over_alone)

    def _seconds(self, job: Job) -> Seconds:
        num_rows, context, num_tokens, attention = work_of(job)
        times = self._times.of(job.model, 1.0)
        prefill_s = times.prefill_s(num_tokens, attention) if num_tokens else 0.0
        decode_s = times.decode_s(num_rows, context) if num_rows else 0.0
        if (num_tokens and not prefill_s) or (num_rows and not decode_s):
            return Seconds(0.0, 0.0)
        alone_s = (prefill_s + decode_s) * job.max_steps
        if job.phase is Phase.DECODE:
            self._open_decode_s[job.model] = decode_s
            return Seconds(alone_s, alone_s)
        if job.phase is Phase.PREFILL:  # the decode that it would have joined was counted already
            decode_s = self._open_decode_s.pop(job.model, 0.0)
            joined_s = times.mixed_s(prefill_s, decode_s) - decode_s if decode_s else prefill_s
            return Seconds(alone_s, joined_s)
        return Seconds(alone_s, times.job_s(work_of(job)) * job.max_steps)

    def _decide(self, now: float) -> None:
        if not self.mixed.is_measured:
            return
        if not self.shares:
            if now >= self._next_trial_s:
                self.shares, self.shared = True, Gain()
            return
        if not self.shared.is_measured:
            return
        # A line that says too little of mixed jobs says too little of shared ones as such, too.
        least = (1 - _MARGIN) * self.mixed.over_mixed
        if self.shared.over_mixed < least or self.shared.over_alone < 1 - _MARGIN:
            self.shares = False
            self._next_trial_s = now + self._retry_s
            self._retry_s = min(2 * self._retry_s, _LONGEST_S)
            self._recheck_s, self._next_recheck_s = _RECHECK_S, math.inf
            return
        self._retry_s = _RETRY_S
        if self._next_recheck_s == math.inf:
            self._next_recheck_s = now + self._recheck_s
        elif now >= self._next_recheck_s:
            self.shares, self.mixed = False, Gain()
            self._next_trial_s, self._next_recheck_s = now, math.inf
            self._recheck_s = min(2 * self._recheck_s, _LONGEST_S)


class UnsharingLane:
    """Does what the judge says; quotas hold both ways.

    A change waits for running jobs: a mixed job takes all SMs, and starts only where none runs.
    """

    uses_quotas = True
    phases = frozenset(Phase)
    may_pipeline = True

    def __init__(self, judge: SharingJudge) -> None:
        self._judge = judge
        self._shared, self._mixed = AdbsLane(), MixedLane()

    @property
    def takes_turns(self) -> bool:
        return not self._judge.shares

    def proposals(self, view: LaneView, now: float) -> Iterator[Proposal]:
        """Those of ADBS, or the next mixed one."""
        lane = self._shared if self._judge.shares else self._mixed
        return lane.proposals(view, now)
