"""Seconds that a job takes alone on its SMs, and its share of the memory bandwidth."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import DraftTokens, Job, Phase
from muxcluster.placement.cost import Cost
from muxcluster.placement.cost.masks import masks_s
from muxcluster.placement.shapes.shape import ModelShape
from muxcluster.scheduling.lanes import LANES
from muxcluster.scheduling.steptime.line import decode_work
from muxcluster.sim.core.unit import SimModel, SimUnit

HOST_LINK = 25e9  # bytes/s between a GPU and host memory, for a unit that does not say
# Mean contexts are rounded to 8 tokens, which changes a decode step of 300 tokens of context by
# less than 0.3 %.
_CONTEXT_STEP = 8
Ints = NDArray[np.int32]
_Steps = dict[int, "Work"]  # decode steps by mean context in units of _CONTEXT_STEP


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds and bandwidth of a job."""

    seconds: float  # of one step, without neighbours
    draw: float  # share of the bandwidth, 0 to 1


class Timing(Protocol):
    """Times the jobs of one unit."""

    def work(self, job: Job, now: float) -> Work:
        """Return the work of `job`, launched at `now`, from its actual rows."""
        ...

    def repeated(self, job: Job) -> Callable[[int], Work]:
        """Return the work of a one-step decode job as a function of its repetitions so far."""
        ...

    def slowdown(self, draws: Sequence[float]) -> float:
        """Return the factor ≥ 1 by which jobs with these draws slow one another."""
        ...


class CostTiming:
    """Timing by `muxcluster.placement.cost` (design.md §7).

    Decode: rows at their mean context, halfway through the steps. Prefill: equal prompts with the
    same tokens and attention, Σ count · (start + count / 2), in sum; rows that are less than one
    such prompt (a late chunk of a long one) cost what the whole costs more than its beginning.
    Mixed: from its prefill and its decode part, which read the weights once and share the launches,
    as the cost model says. Masks are computed beside the forward, so the longer of the two counts.
    What the unit itself does between two jobs counts with the first of
    them: tokens come out after it, and the next job starts. Copies between pool and host run beside
    the forward, each GPU copying its own heads, so the longer of the two counts (BROS §5); moves
    inside the pool are free, as GPU memory is 60 times as fast.
    """

    def __init__(self, unit: SimUnit) -> None:
        self._models = unit.models
        self._slowdown = next(iter(unit.models.values())).cost.slowdown
        self._tp = unit.tp
        # Of several models, most often another one has work, and nothing is sent ahead.
        scheduler = unit.spec.scheduler
        is_alone = scheduler.pipeline_depth > 1 and len(unit.models) == 1
        self._sends_ahead = is_alone and LANES[scheduler.lane].may_pipeline
        self._host_link = unit.spec.host_link or HOST_LINK
        self._slot_bytes = {model.name: 2 * model.shape.slot_bytes for model in unit.spec.models}
        self._decodes = {
            name: _decodes(model.cost, model.shape, unit.tp) for name, model in unit.models.items()
        }

    def slowdown(self, draws: Sequence[float]) -> float:
        return self._slowdown(draws)

    def work(self, job: Job, now: float) -> Work:
        """Return the work of `job` from its actual rows and copies; `now` is not used."""
        work = _at_least(self._forward(job), self._masks_s(job))
        if job.copies:
            work = self._beside(work, job)
        return _longer(work, self._turn_s(job))

    def _beside(self, work: Work, job: Job) -> Work:
        num_bytes = sum(
            self._slot_bytes[each.model] * int(moved[:, 2].sum())
            for each in job.copies
            for moved in (each.saves, each.restores)
        )
        seconds = max(work.seconds, num_bytes / self._host_link / job.max_steps)
        return Work(seconds, work.draw * work.seconds / seconds)

    def _forward(self, job: Job) -> Work:
        rows = job.rows
        if rows.drafts is not None:
            return self._with_drafts(job, rows.drafts)
        if job.phase is Phase.DECODE:
            return self._steps_of(job)(0)
        counts, starts_of = rows.counts, rows.starts
        if job.phase is Phase.MIXED:
            is_chunk = counts > 1
            num_decodes = len(rows) - int(is_chunk.sum())
            if num_decodes:
                context = float(starts_of[~is_chunk].mean()) + 1
                decode = self._mixed_decode(job, num_decodes, context)
                if num_decodes == len(rows):
                    return decode
                counts, starts_of = counts[is_chunk], starts_of[is_chunk]
                return self._together(job, decode, self._prefill(job, *_sums(counts, starts_of)))
        return self._prefill(job, *_sums(counts, starts_of))

    def _with_drafts(self, job: Job, drafts: DraftTokens) -> Work:
        """Return the work of a job that decodes draft tokens, each of which counts as a row."""
        rows = job.rows
        is_chunk = (rows.counts > 1) & (drafts.counts == 0) & (job.phase is Phase.MIXED)
        starts, counts = rows.starts[~is_chunk], rows.counts[~is_chunk]
        num_decodes, attended = decode_work(starts, counts)
        decode = self._mixed_decode(job, num_decodes, attended / num_decodes)
        if not is_chunk.any():
            return decode
        chunks = _sums(rows.counts[is_chunk], rows.starts[is_chunk])
        return self._together(job, decode, self._prefill(job, *chunks))

    def repeated(self, job: Job) -> Callable[[int], Work]:
        """Return the work by repetitions; every row is one token longer each time."""
        forward = self._steps_of(job)
        turn_s, mask_s = self._turn_s(job), self._masks_s(job)
        if not (turn_s or mask_s):
            return forward
        return lambda count: _longer(_at_least(forward(count), mask_s), turn_s)

    def _masks_s(self, job: Job) -> float:
        return masks_s(len(job.rows), self._models[job.model].constrained_share)

    def _turn_s(self, job: Job) -> float:
        """Return each step's part of what the unit does after the job, if a worker waits for it."""
        if self._sends_ahead and not job.admissions and job.rows.counts.max() == 1:
            return 0.0
        cost = self._models[job.model].cost
        return cost.turn_s(len(job.rows), len(job.admissions)) / job.max_steps

    def _steps_of(self, job: Job) -> Callable[[int], Work]:
        """Return the forward passes of `repeated`."""
        num_rows, starts = len(job.rows), int(job.rows.starts.sum())
        half = (job.max_steps + 1) / 2
        works = self._steps(job, num_rows)

        def work_after(count: int) -> Work:
            context = (starts + count * num_rows) / num_rows + half
            step = round(context / _CONTEXT_STEP)
            if (work := works.get(step)) is None:
                work = works[step] = self._decode(job, num_rows, step)
            return work

        return work_after

    def _steps(self, job: Job, num_rows: int) -> _Steps:
        """Return the cached decode steps of so many rows at the job's share."""
        return self._decodes[job.model].setdefault((job.share, num_rows), {})

    def _decode(self, job: Job, num_rows: int, step: int) -> Work:
        model, tokens = self._models[job.model], max(1, step * _CONTEXT_STEP)
        case = model.shape, self._tp, job.share, num_rows, tokens
        return Work(model.cost.decode_s(*case), model.cost.decode_draw(*case))

    def _mixed_decode(self, job: Job, num_rows: int, context: float) -> Work:
        step = round(context / _CONTEXT_STEP)
        works = self._steps(job, num_rows)
        if (work := works.get(step)) is None:
            work = works[step] = self._decode(job, num_rows, step)
        return work

    def _together(self, job: Job, decode: Work, prefill: Work) -> Work:
        model = self._models[job.model]
        parts = prefill.seconds, decode.seconds
        seconds = model.cost.mixed_s(model.shape, self._tp, job.share, *parts)
        drawn = decode.seconds * decode.draw + prefill.seconds * prefill.draw
        return Work(seconds, min(1.0, drawn / seconds))

    def _prefill(self, job: Job, num_tokens: float, attention: float) -> Work:
        """attention: Σ count · (start + count / 2) of the rows."""
        model = self._models[job.model]
        prompt = 2 * attention / num_tokens
        if prompt > num_tokens:
            return self._late_chunk(model, job.share, num_tokens, attention)
        case = model.shape, self._tp, job.share, num_tokens / prompt, prompt
        return Work(model.cost.prefill_s(*case), model.cost.prefill_draw(*case))

    def _late_chunk(
        self, model: SimModel, share: float, num_tokens: float, attention: float
    ) -> Work:
        cost, shape, tp = model.cost, model.shape, self._tp
        start = attention / num_tokens - num_tokens / 2
        alone = cost.prefill_s(shape, tp, share, 1, num_tokens)
        more = cost.prefill_s(shape, tp, share, 1, start + num_tokens)
        more -= cost.prefill_s(shape, tp, share, 1, max(1.0, start))
        draw = cost.prefill_draw(shape, tp, share, 1, num_tokens)
        return Work(max(alone, more), draw * alone / max(alone, more))


@lru_cache(maxsize=256)
def _decodes(cost: Cost, shape: ModelShape, tp: int) -> dict[tuple[float, int], _Steps]:
    """Return cached decode steps by (SM share, rows), common to all units and runs."""
    return {}


def _sums(counts: Ints, starts: Ints) -> tuple[float, float]:
    return float(counts.sum()), float((counts * (starts + counts / 2)).sum())


def _at_least(work: Work, seconds: float) -> Work:
    """Return `work`, which waits for something that takes so long and draws no bandwidth."""
    return _longer(work, max(0.0, seconds - work.seconds))


def _longer(work: Work, more_s: float) -> Work:
    """Return `work` with seconds in which it draws no bandwidth."""
    if not more_s:
        return work
    seconds = work.seconds + more_s
    return Work(seconds, work.draw * work.seconds / seconds)
