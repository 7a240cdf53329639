"""Predicted seconds of jobs, as the scheduler asks for them; corrected as jobs end."""

from collections import defaultdict
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import Job, Phase
from muxcluster.scheduling.steptime.images import ImageTimes
from muxcluster.scheduling.steptime.learn import (
    KNOWN,
    CopyTimes,
    ErrorWindow,
    Interference,
    JobLines,
    Margins,
    ModelLines,
    PredictionError,
)
from muxcluster.scheduling.steptime.line import (
    JobWork,
    Line,
    each_mixed_s,
    mixed_s,
    part_within,
    work_of,
)
from muxcluster.scheduling.steptime.seed import Seed


class JobTimes:
    """Predicted seconds of one model's jobs at one SM share.

        decode_s(num_rows, context) -> float
        prefill_s(num_tokens, attention) -> float
        job_s(work) -> float                     # decode, prefill or mixed, by what is in it
        image_s(num_tokens) -> float             # beside these, of images in prompts
        prompt_tokens_within(seconds, work, start, limit) -> int
        rows_within(seconds, work, contexts, counts) -> int

    `JobWork` explains the numbers. All predictions are of one step, of a job without neighbours and
    without copies. They never fall when work is added. They are 0 while nothing is known of the
    model: no seed, and fewer than 8 jobs seen. A mixed job is the larger of its parts and a learnt
    portion of the smaller one, see `mixed_s`.
    """

    __slots__ = ("_decode", "_images", "_mixed", "_prefill", "lines")

    def __init__(self, lines: JobLines, images: Callable[[int], float] = lambda _: 0.0) -> None:
        """images: see `image_s`."""
        self.lines = lines
        self._images = images
        self._decode, self._prefill, self._mixed = lines.decode, lines.prefill, lines.mixed

    def decode_s(self, num_rows: float, context: float) -> float:
        """Return the seconds of one decode step."""
        return self._decode.line.seconds(num_rows, context)

    def prefill_s(self, num_tokens: float, attention: float) -> float:
        """Return the seconds of one forward over prompt tokens."""
        return self._prefill.line.seconds(num_tokens, attention)

    def job_s(self, work: JobWork) -> float:
        """Return the seconds of one step of a job, whatever is in it."""
        num_rows, context, num_tokens, attention = work
        if not num_tokens:
            return self._decode.line.seconds(num_rows, context) if num_rows else 0.0
        prefill_s = self._prefill.line.seconds(num_tokens, attention)
        if not num_rows:
            return prefill_s
        return self.mixed_s(prefill_s, self._decode.line.seconds(num_rows, context))

    def mixed_s(self, prefill_s: float, decode_s: float) -> float:
        """Return the seconds of one forward over a prefill and a decode that take so long apart."""
        return mixed_s(self._mixed.line, prefill_s, decode_s, self._decode.line.fixed_s)

    def image_s(self, num_tokens: int) -> float:
        """Return the seconds of embedding images of so many tokens, which a prefill has first."""
        return self._images(num_tokens)

    def prompts_s(self, num_tokens: NDArray[np.float64], step_s: float) -> NDArray[np.float64]:
        """Return the seconds of forwards over a whole prompt each, [n].

        step_s: of a decode in each of them, alone; 0: none.
        """
        line = self._prefill.line
        part_s = line.each(num_tokens, num_tokens * num_tokens / 2)
        if not step_s:
            return part_s
        return each_mixed_s(self._mixed.line, part_s, step_s, self._decode.line.fixed_s)

    def prompt_tokens_within(self, seconds: float, work: JobWork, start: int, limit: int) -> int:
        """Return the most prompt tokens from position `start`, up to `limit`, that may join `work`.

        With them `job_s` is at most `seconds`; 0 where not even one may.
        """
        budget_s = seconds
        if work.num_rows:
            decode = self._decode.line
            decode_s = decode.seconds(work.num_rows, work.context)
            budget_s = part_within(self._mixed.line, seconds, decode_s, decode.fixed_s)
        near = self._prefill.line.tokens_within(budget_s, work.num_tokens, work.attention, start)
        return _greatest(
            lambda count: self.job_s(work.with_prompt(start, count)) <= seconds, near, limit
        )

    def rows_within(
        self,
        seconds: float,
        work: JobWork,
        contexts: NDArray[np.integer],
        counts: NDArray[np.int32] | None = None,
    ) -> int:
        """Return how many decoding rows, in order, may join `work` with `job_s` ≤ `seconds`.

        counts: [n] tokens that each computes, None: one. contexts: [n] tokens that these attend to,
        the new ones included.
        """
        num_rows = len(contexts)
        num_tokens = num_rows if counts is None else int(np.add.reduce(counts))
        if self.job_s(work.with_rows(num_tokens, int(np.add.reduce(contexts)))) <= seconds:
            return num_rows
        each = np.arange(1.0, num_rows + 1) if counts is None else counts.cumsum(dtype=np.float64)
        line = self._decode.line
        context = work.context + contexts.cumsum(dtype=np.float64)
        part_s = line.each(work.num_rows + each, context)
        if work.num_tokens:
            prefill_s = self.prefill_s(work.num_tokens, work.attention)
            part_s = each_mixed_s(self._mixed.line, part_s, prefill_s, line.fixed_s)
        return int(part_s.searchsorted(seconds, side="right"))


class StepTimes:
    """Predictions for all models of a unit (design.md §2, §7): `of` a model at an SM share.

    Public: copies, predictions of the host link; images, of what embeds them.
    """

    def __init__(self, seed: Seed | None = None, copies: CopyTimes | None = None) -> None:
        """seed: where the lines start; asked when a model and share is first asked for."""
        self.copies = copies or CopyTimes({})
        self.images = ImageTimes()
        self._seed = seed
        self._models: dict[str, ModelLines] = {}
        self._times: dict[tuple[str, float], JobTimes] = {}
        self._interference: dict[tuple[str, Phase], Interference] = defaultdict(Interference)
        self._errors: dict[tuple[str, Phase], ErrorWindow] = defaultdict(ErrorWindow)
        self._margins: dict[str, Margins] = defaultdict(Margins)
        self.num_observed = 0  # jobs that were learnt from

    def of(self, model: str, share: float) -> JobTimes:
        """Return the predictions for one model at one SM share; they stay up to date."""
        found = self._times.get((model, share))
        if found is None:
            if model not in self._models:
                self._models[model] = ModelLines(partial(self._expected, model))
            found = self._times[model, share] = JobTimes(
                self._models[model].at(share), partial(self.images.seconds, model, share)
            )
        return found

    def beside(self, model: str, phase: Phase, num_beside: int) -> float:
        """Return by what factor a job takes longer beside so many others than alone."""
        return self._interference[model, phase].factor(num_beside)

    def margins(self, model: str) -> Margins:
        """Return by what factors the model's jobs overrun their predictions; kept up to date."""
        return self._margins[model]

    def observe(self, job: Job, seconds: float, num_beside: int = 0) -> None:
        """Learn that `job` ended after `seconds` for all its steps, beside `num_beside` others.

        Seconds that are not above 0 and finite say nothing. Of a job whose copies outlasted
        its forward only the link's speed is learnt.
        """
        if not 0 < seconds < float("inf"):
            return
        self.num_observed += 1
        work, times = work_of(job), self.of(job.model, job.share)
        interference = self._interference[job.model, work.phase]
        alone_s = times.job_s(work)
        forward_s = alone_s * interference.factor(num_beside) * job.max_steps
        num_bytes = self.copies.num_bytes(job) if job.copies else 0
        predicted_s = self.copies.job_s(forward_s, num_bytes)
        if predicted_s > 0:
            self._errors[job.model, work.phase].add(predicted_s, seconds)
            if times.lines.of(work.phase).num_jobs >= KNOWN:  # a first guess is no prediction
                self._margins[job.model].add(predicted_s, seconds)
        if job.copies:
            read_s = self.copies.observe_job(num_bytes, forward_s, seconds)
            if not read_s:  # not readable, or the copies explain all of it
                return
            seconds = read_s
        step_s = seconds / job.max_steps
        line_s = step_s / interference.factor(num_beside)
        if num_beside > 0 and alone_s > 0:
            interference.observe(num_beside, step_s / alone_s)
        if times.lines.of(work.phase).is_corrected_by(num_beside):
            times.lines.observe(work, line_s)

    def errors(self) -> dict[tuple[str, Phase], PredictionError]:
        """Return the errors of every model and phase of which jobs were predicted."""
        return {key: window.error() for key, window in self._errors.items()}

    def mean_error(self, model: str) -> float:
        """Return the mean error of a model over all phases, by how many jobs of each there were."""
        errors = [error for (name, _), error in self.errors().items() if name == model]
        count = sum(error.count for error in errors)
        return sum(error.count * error.mean for error in errors) / count if count else 0.0

    def _expected(self, model: str, phase: Phase, share: float) -> Line | None:
        return None if self._seed is None else self._seed.line(phase, model, share)


def _greatest(fits: Callable[[int], bool], near: float, limit: int) -> int:
    """Return the greatest count up to `limit` that fits, 0 for none.

    Whatever fits, fewer fit too. near: the answer but for rounding.
    """
    count = int(min(max(near, 0.0), limit))
    while count > 0 and not fits(count):
        count -= 1
    while count < limit and fits(count + 1):
        count += 1
    return count
