"""SM shares chosen together: at which rungs jobs run side by side."""

from collections.abc import Callable, Sequence
from math import sqrt
from typing import NamedTuple

from muxcluster.core.job import Phase
from muxcluster.scheduling.shares import Rungs, ShareLedger
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.steptime.model import StepTimes

# A second of a job's fixed cost (weights read, kernels launched) is worth so much of a second of
# what grows with its rows. In full, decodes of few rows take the SMs of those with many; for
# nothing, models whose steps are nearly all fixed cost get too little. Chosen on simulated units of
# two to four models.
_FIXED_WORTH = 0.25
# What a second of prefill progress is worth beside one of decodes where prompts are what holds the
# unit up. At 1 first tokens wait several times as long in prompt-heavy units and no more is served.
_MOST_URGENT = 2.0
_URGENCY_STEPS = 8
_STALE = 64  # jobs learnt from after which what was predicted is predicted again
_DIGITS = 3  # of sums that are compared: predictions are no better


class Sharer(NamedTuple):
    """A job that runs or wants to run."""

    model: ModelState
    phase: Phase
    size: int  # rows that decode, or prompt tokens


_Given = tuple[int, float]  # index of the job that starts; `most`, or steps of urgency
_Choice = Callable[[Sequence[Sharer], int, float], float]
# By name, phase and power of 2 of the size of each
_Key = tuple[tuple[tuple[str, Phase, int], ...], _Given]


class Division:
    """Chooses rungs by predicted progress: worth of a job's work over its seconds, beside others.

    Answers are for powers of two of rows and tokens and are kept, so that a decision is a look-up.
    Where nothing is known of a model, its progress is taken to be as the root of its share.
    """

    def __init__(self, shares: ShareLedger, times: StepTimes) -> None:
        self._shares, self._times = shares, times
        self._known: dict[_Key, float] = {}
        self._num_observed = 0

    def decode(self, jobs: Sequence[Sharer], index: int, most: float) -> float:
        """Return the rung of one of `jobs`: all together progress most. 0: there is none.

        jobs: decodes that run, or want to, always in the same order, so that each gets its part of
        the same choice. index: of the one that starts now. most: SMs for all of them.
        """
        return self._recalled(jobs, (index, most), self._best_decode)

    def prefill(self, jobs: Sequence[Sharer], urgency: float) -> float:
        """Return the rung of the first of `jobs`, a prefill, among decodes. 0: there is none.

        urgency: 0 where decodes hold the unit up, 1 where prompts do. At 0, the rung at which
        decodes lose least for the prefill's progress: while it runs they have fewer SMs, but for a
        shorter time where it has more, so what they lose by it is their loss a second over its
        progress a second. At 1 its progress counts twice as much as theirs.
        """
        return self._recalled(jobs, (0, round(_URGENCY_STEPS * urgency)), self._best_prefill)

    def _recalled(self, jobs: Sequence[Sharer], given: _Given, best: _Choice) -> float:
        if self._times.num_observed >= self._num_observed + _STALE:
            self._known.clear()
            self._num_observed = self._times.num_observed
        key = tuple([(job.model.name, job.phase, job.size.bit_length()) for job in jobs]), given
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = best(jobs, *given)
        return found

    def _best_decode(self, jobs: Sequence[Sharer], index: int, most: float) -> float:
        # Ties: the most even tuple, then more for those that come first.
        ranked = [
            (round(sum(parts), _DIGITS), -max(rungs), rungs)
            for rungs, parts in self._progress(jobs, most)
            if rungs[index] > 0
        ]
        return max(ranked)[2][index] if ranked else 0.0

    def _best_prefill(self, jobs: Sequence[Sharer], index: int, urgency: float) -> float:
        """index: 0. urgency: in steps."""
        most = max(sum(parts) for _, parts in self._progress(jobs[1:], 1.0))
        found = [each for each in self._progress(jobs, 1.0) if each[0][0] > 0]
        found = [each for each in found if any(each[0][1:])] or found  # some decode runs beside it
        if not found:
            return 0.0
        least = min((most - sum(decodes)) / own for _, (own, *decodes) in found)
        worth = least + max(0.0, _MOST_URGENT - least) * urgency / _URGENCY_STEPS
        return max(
            (round(worth * own + sum(decodes), _DIGITS), -max(rungs), rungs)
            for rungs, (own, *decodes) in found
        )[2][index]

    def _progress(self, jobs: Sequence[Sharer], most: float) -> list[tuple[Rungs, list[float]]]:
        """Return the tuples of rungs that are possible, each with the progress of every job."""
        found = []
        for rungs in self._shares.tuples(tuple([job.phase for job in jobs]), most):
            beside = sum(rung > 0 for rung in rungs) - 1
            parts = [
                self._one(job, rung) / self._slower(job, beside) if rung else 0.0
                for job, rung in zip(jobs, rungs, strict=True)
            ]
            found.append((rungs, parts))
        return found

    def _slower(self, job: Sharer, num_beside: int) -> float:
        """Return by what factor a job is slower beside so many others than beside one.

        Whether jobs should share the SMs at all is not asked here: the judge of unsharing.py
        measures that.
        """
        if num_beside < 2:
            return 1.0
        name, phase = job.model.name, job.phase
        return self._times.beside(name, phase, num_beside) / self._times.beside(name, phase, 1)

    def _one(self, job: Sharer, share: float) -> float:
        """Return the worth of a job's work over its seconds at a share, without neighbours."""
        size = 0.75 * 2 ** job.size.bit_length()  # the middle of its octave
        alone, part = self._times.of(job.model.name, 1.0), self._times.of(job.model.name, share)
        spec = job.model.spec
        if job.phase is Phase.DECODE:
            context = size * (spec.mean_prompt_tokens + spec.mean_output_tokens)
            alone_s, part_s = alone.decode_s(size, context), part.decode_s(size, context)
        else:
            attention = size * min(size, spec.mean_prompt_tokens) / 2
            alone_s, part_s = alone.prefill_s(size, attention), part.prefill_s(size, attention)
        if not (alone_s > 0 and part_s > 0):
            return sqrt(share)
        fixed_s = alone.lines.of(job.phase).line.fixed_s
        return (alone_s - (1 - _FIXED_WORTH) * fixed_s) / part_s
