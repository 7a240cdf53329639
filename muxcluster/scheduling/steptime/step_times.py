"""Seconds of jobs before they run: linear in tokens and context, corrected as jobs end."""

from collections import Counter
from functools import partial

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import Job, Phase
from muxcluster.scheduling.steptime.by_share import LinesByShare
from muxcluster.scheduling.steptime.copies import CopyTimes
from muxcluster.scheduling.steptime.errors import ErrorWindow, PredictionError
from muxcluster.scheduling.steptime.interference import Interference
from muxcluster.scheduling.steptime.inverse import prefill_within, tokens_within
from muxcluster.scheduling.steptime.line import Line
from muxcluster.scheduling.steptime.mixed import (
    MixedFactors,
    Parts,
    each_together_s,
    explained,
    part_within,
    together_s,
)
from muxcluster.scheduling.steptime.seed import Seed
from muxcluster.scheduling.steptime.work import JobWork, work_of

_KNOWN = 8
"""Jobs of one phase from which on its line is known without mixed jobs."""
_LESSONS, _SELDOM = 64, 4
"""So many mixed jobs each correct the parts, later every so many-th: it costs as much again.
A mixed job that is off by more than the part below always does."""
_SURPRISE = 0.1
_LEAST_PART = 1e-9
"""Of a job's seconds, what either part takes at least."""


class StepTimes:
    """Predicted seconds of a model's jobs at an SM share (DESIGN.md §2, §7).

        decode_s(model, share, num_rows, context) -> float
        prefill_s(model, share, num_tokens, attention) -> float
        mixed_s(model, share, num_rows, context, num_tokens, attention) -> float
        job_s(model, share, work: JobWork) -> float           # any of the three, by what is in it
        prefill_tokens_within(model, share, seconds, work, start, limit) -> int
        rows_within(model, share, seconds, work, lengths) -> int
        beside(model, phase, num_beside) -> float              # factor on all of the above
        copy_s(num_bytes), with_copies(forward_s, num_bytes) -> float
        observe(job, seconds, num_beside=0), observe_copy(num_bytes, seconds) -> None
        errors() -> {(model, phase): PredictionError}

    context: tokens that the rows attend to, their new one included, summed. attention:
    Σ count · (start + count / 2) over the prompts' rows. `JobWork` holds the four numbers.
    All predictions are of one step, of a job without neighbours and without copies. They never
    fall when work is added. They are 0 while nothing is known of a model: no seed, and fewer than
    8 jobs seen. A mixed job is the larger of its parts and a learnt portion of the smaller one
    (first half), another of what a decode step takes at least, as both may share that
    (`together_s`). Mixed jobs also teach prefill's line, until a seed of it is confirmed by 8
    prefill jobs; and decode's, where there is neither a seed nor 8 decode jobs.
    """

    def __init__(self, seed: Seed | None = None, copies: CopyTimes | None = None) -> None:
        """seed: where the lines start. copies: what is known of the host link."""
        self._decode = LinesByShare(partial(_expected, seed, Phase.DECODE))
        self._prefill = LinesByShare(partial(_expected, seed, Phase.PREFILL))
        self._mixed = MixedFactors(partial(_expected, seed, Phase.MIXED))
        self._num_jobs: Counter[tuple[str, float, Phase]] = Counter()
        """Jobs that corrected the model, by what was in them."""
        self._beside = Interference()
        self._copies = copies or CopyTimes({})
        self._errors: dict[tuple[str, Phase], ErrorWindow] = {}

    def decode_s(self, model: str, share: float, num_rows: float, context: float) -> float:
        """One step of `num_rows` sequences."""
        return self._decode.line(model, share).seconds(num_rows, context)

    def prefill_s(self, model: str, share: float, num_tokens: float, attention: float) -> float:
        """One forward over prompt tokens."""
        return self._prefill.line(model, share).seconds(num_tokens, attention)

    def mixed_s(
        self,
        model: str,
        share: float,
        num_rows: float,
        context: float,
        num_tokens: float,
        attention: float,
    ) -> float:
        """One forward over both; either may be none."""
        return self.job_s(model, share, JobWork(num_rows, context, num_tokens, attention))

    def job_s(self, model: str, share: float, work: JobWork) -> float:
        """One step of a job, whatever is in it."""
        num_rows, context, num_tokens, attention = work
        if not num_tokens:
            return self._decode.line(model, share).seconds(num_rows, context) if num_rows else 0.0
        prefill_s = self._prefill.line(model, share).seconds(num_tokens, attention)
        if not num_rows:
            return prefill_s
        decode = self._decode.line(model, share)
        mix = self._mixed.line(model, share)
        return together_s(mix, prefill_s, decode.seconds(num_rows, context), decode.fixed_s)

    def prefill_tokens_within(
        self, model: str, share: float, seconds: float, work: JobWork, start: int, limit: int
    ) -> int:
        """The most prompt tokens from position `start` on, up to `limit`, that may join `work`.

        With them `job_s` is at most `seconds`; 0 where not even one may.
        """
        num_rows, context, num_tokens, attention = work
        budget_s = seconds
        if num_rows:
            decode = self._decode.line(model, share)
            decode_s = decode.seconds(num_rows, context)
            mix = self._mixed.line(model, share)
            budget_s = part_within(mix, seconds, decode_s, decode.fixed_s)
        near = prefill_within(self._prefill.line(model, share), budget_s, work, start)

        def with_tokens(count: int) -> float:
            attended = attention + count * (start + count / 2)
            return self.job_s(
                model, share, JobWork(num_rows, context, num_tokens + count, attended)
            )

        return tokens_within(with_tokens, seconds, near, limit)

    def rows_within(
        self, model: str, share: float, seconds: float, work: JobWork, lengths: NDArray[np.int32]
    ) -> int:
        """How many decoding rows, taken in order, may join `work` with `job_s` at most `seconds`.

        lengths: [n] tokens that each attends to, its new one included.
        """
        everybody = work.with_rows(len(lengths), int(np.add.reduce(lengths)))
        if self.job_s(model, share, everybody) <= seconds:
            return len(lengths)
        num_rows, context, num_tokens, attention = work
        counts = num_rows + np.arange(1, len(lengths) + 1, dtype=np.float64)
        line = self._decode.line(model, share)
        part_s = line.each(counts, context + lengths.astype(np.float64).cumsum())
        if num_tokens:
            prefill_s = self._prefill.line(model, share).seconds(num_tokens, attention)
            mix = self._mixed.line(model, share)
            part_s = each_together_s(mix, part_s, prefill_s, line.fixed_s)
        return int(part_s.searchsorted(seconds, side="right"))

    def beside(self, model: str, phase: Phase, num_beside: int) -> float:
        """By what factor a job takes longer beside so many others than alone."""
        return self._beside.factor(model, phase, num_beside)

    def copy_s(self, num_bytes: float) -> float:
        """Copying so many bytes between the pool and host memory."""
        return self._copies.copy_s(num_bytes)

    def with_copies(self, forward_s: float, num_bytes: float) -> float:
        """A job that copies so much: max(T_exec, T_restore); the sum where nothing overlaps."""
        return self._copies.together_s(forward_s, num_bytes) if num_bytes else forward_s

    def observe_copy(self, num_bytes: float, seconds: float) -> None:
        """Copies alone took `seconds`."""
        self._copies.observe(num_bytes, seconds)

    def observe(self, job: Job, seconds: float, num_beside: int = 0) -> None:
        """`job` ended after `seconds`, all its steps together, beside `num_beside` other jobs.

        Seconds that are not above 0 and finite say nothing. Of a job whose copies outlasted
        its forward only the link's speed is learnt.
        """
        if not 0 < seconds < float("inf"):
            return
        work = work_of(job)
        phase = work.phase
        alone_s = self.job_s(job.model, job.share, work)
        forward_s = alone_s * self._beside.factor(job.model, phase, num_beside) * job.max_steps
        read_s: float | None = seconds
        if job.copies:
            num_bytes = self._copies.num_bytes(job)
            self._note(job.model, phase, self.with_copies(forward_s, num_bytes), seconds)
            read_s = self._copies.observe_job(num_bytes, forward_s, seconds)
        else:
            self._note(job.model, phase, forward_s, seconds)
        if read_s is None:
            return
        step_s = float(read_s) / job.max_steps
        line_s = step_s / self._beside.factor(job.model, phase, num_beside)
        if num_beside > 0 and alone_s > 0:
            self._beside.observe(job.model, phase, num_beside, step_s / alone_s)
        if self._beside.leaves_line(job.model, phase, job.share, num_beside):
            return
        self._correct(job.model, job.share, work, line_s)

    def errors(self) -> dict[tuple[str, Phase], PredictionError]:
        """Of every model and phase of which jobs were predicted."""
        return {key: window.error() for key, window in self._errors.items()}

    def _note(self, model: str, phase: Phase, predicted_s: float, seconds: float) -> None:
        if predicted_s > 0:
            window = self._errors.get((model, phase))
            if window is None:
                window = self._errors[model, phase] = ErrorWindow()
            window.add(predicted_s, seconds)

    def _correct(self, model: str, share: float, work: JobWork, step_s: float) -> None:
        num_rows, context, num_tokens, attention = work
        if num_tokens and num_rows:
            self._correct_mixed(model, share, work, step_s)
            return
        self._num_jobs[model, share, work.phase] += 1
        if num_rows:
            self._decode.observe(model, share, num_rows, context, step_s)
        else:
            self._prefill.observe(model, share, num_tokens, attention, step_s)

    def _correct_mixed(self, model: str, share: float, work: JobWork, step_s: float) -> None:
        """The factors, and often before them the parts."""
        decode, prefill = self._decode.line(model, share), self._prefill.line(model, share)
        parts = (
            decode.seconds(work.num_rows, work.context),
            prefill.seconds(work.num_tokens, work.attention),
            decode.fixed_s or prefill.fixed_s,
        )
        parts = explained(parts, step_s)
        unexpected_s = step_s - together_s(self._mixed.line(model, share), *parts)
        key = model, share, Phase.MIXED
        self._num_jobs[key] = count = self._num_jobs[key] + 1
        if count <= _LESSONS or count % _SELDOM == 0 or abs(unexpected_s) > _SURPRISE * step_s:
            parts = self._corrected(model, share, work, parts, step_s)
        self._mixed.observe_parts(model, share, parts, step_s)

    def _corrected(
        self, model: str, share: float, work: JobWork, parts: Parts, step_s: float
    ) -> Parts:
        """Parts of which too few jobs of their own tell, corrected by a mixed job.

        Such a part is what was expected of it and all that the job took longer than expected.
        """
        decode_s, prefill_s, fixed_s = parts
        num_rows, context, num_tokens, attention = work
        mix, least_s = self._mixed.line(model, share), _LEAST_PART * step_s
        if not self._is_known(model, share, Phase.PREFILL):
            part_s = prefill_s + step_s - together_s(mix, *parts)
            self._prefill.observe(model, share, num_tokens, attention, max(least_s, part_s))
            line = self._prefill.line(model, share)
            prefill_s = line.seconds(num_tokens, attention) or prefill_s
        if not self._is_known(model, share, Phase.DECODE):
            part_s = decode_s + step_s - together_s(mix, decode_s, prefill_s, fixed_s)
            self._decode.observe(model, share, num_rows, context, max(least_s, part_s))
            line = self._decode.line(model, share)
            decode_s, fixed_s = line.seconds(num_rows, context) or decode_s, line.fixed_s or fixed_s
        return decode_s, prefill_s, fixed_s

    def _is_known(self, model: str, share: float, phase: Phase) -> bool:
        """Mixed jobs say nothing of this phase's line that others would not say better."""
        has_own = self._num_jobs[model, share, phase] >= _KNOWN
        if phase is Phase.DECODE:
            return has_own or self._decode.is_expected(model, share)
        return has_own and self._prefill.is_expected(model, share)


def _expected(seed: Seed | None, phase: Phase, model: str, share: float) -> Line | None:
    return None if seed is None else seed.line(phase, model, share)
