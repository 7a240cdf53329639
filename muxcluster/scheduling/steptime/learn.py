"""What measured jobs teach: lines by SM share, neighbours' interference, the host link, errors."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, log

import numpy as np

from muxcluster.core.job import Job, Phase
from muxcluster.placement.cost.interference import COLOCATION_LOSS
from muxcluster.scheduling.steptime.line import (
    EVEN,
    LEAST,
    MOST,
    Fit,
    Gains,
    JobWork,
    Line,
    mixed_s,
)

_FEWEST = 8  # observations before there is a line without a prior
_FREE = (1e-3, 1e3)  # bounds of coefficients that start from a guess
_GUESS_TRUST = 0.02  # in the proportions of that guess
_FIXED_PART = 0.8  # of the first observations' mean; the rest grows with both token counts
_UNKNOWN = Line(0.0, 0.0, 0.0)

_HALF_THE_SMALLER = Line(0.5, 1.0, 0.5)  # first factors of mixed jobs: the simulator's assumption
_MIX_BOUNDS = (0.02, 20.0)  # of the factors relative to those: f0 may all but vanish
# Little trust in those factors, as what parts share differs from machine to machine: where they
# share their fixed cost, 20 jobs leave a mean error of 2.8 %; with a trust of 0.2, 5.4 %.
_MIX_TRUST = 0.05
_LEAST_PART = 1e-9  # of a job's seconds, what either of its parts takes at least
KNOWN = 8  # jobs of one phase after which mixed jobs no longer teach its line
_LESSONS, _SELDOM = 64, 4  # after 64 mixed jobs only every fourth teaches the parts: it costs time
_SURPRISE = 0.1  # a mixed job with a greater relative error always does

_EXPECTED_FACTOR = Line(1 + COLOCATION_LOSS, 0.0, 0.0)  # of a job with neighbours, before any ran
_RECENT = 64  # jobs after a lone one in which others leave the line alone

_BYTE_S = 1 / 8e9  # first guess of the host link: half of what PCIe 3 carries
_SEEN_PART = 1.25  # copies show where a job takes so many times its forward's expected seconds
_ENOUGH = 16  # copies observed after which a slow job with few bytes is taken for a slow forward
_HIDDEN_PART = 0.25  # copies below this part of the forward leave the forward's seconds readable

_ERRORS = 512  # of one model and phase, that statistics are over

_OVERRUNS = 256  # of one model, that its margins are over
# Of these jobs, as many end within the margin of a token and within that of a first token: targets
# of the first are of the mean over many tokens, of the second of one job.
_WITHIN, _FIRST_WITHIN = 0.95, 0.99
# A model starts as if so many jobs had taken so many times what was predicted: until some 100 jobs
# were seen the margin of a first token is no smaller, until some 20 the other.
_DOUBTS, _DOUBT = 1, 1.4
_MOST_MARGIN = 2.0  # as `Fit` clips a job that took longer: it says nothing of the next one
_RENEWED = 8  # jobs after which margins are found again


class PhaseLines:
    """The lines of one model and phase at all SM shares; unseen shares borrow from seen ones."""

    def __init__(
        self,
        prior: Callable[[float], Line | None],
        bounds: tuple[float, float] = (LEAST, MOST),
        trust: float = 1.0,
    ) -> None:
        """prior: expected line at a share, None where nothing is known; asked once a share.

        bounds, trust: of fits that start from the prior, see `Fit`.
        """
        self._prior, self._bounds, self._trust = prior, bounds, trust
        self.by_share: dict[float, ShareLine] = {}
        self.seen: list[ShareLine] = []  # those with a fit, in the order of their first jobs

    def at(self, share: float) -> "ShareLine":
        found = self.by_share.get(share)
        if found is None:
            found = self.by_share[share] = ShareLine(self, share, self._prior(share))
        return found

    def start(self, share: float, prior: Line | None) -> Fit | None:
        """Return a new fit for a share: its prior, with the gains of the nearest seen share.

        Without a prior: the nearest share's line in inverse proportion to the shares.
        """
        near = min(self.seen, key=lambda seen: abs(log(seen.share / share)), default=None)
        if prior is not None:
            gains = EVEN if near is None else near.gains
            return Fit(prior, gains, self._bounds, self._trust)
        if near is None:
            return None
        factor = near.share / share
        return Fit(near.line.scaled((factor,) * 4), bounds=_FREE, trust=_GUESS_TRUST)


class ShareLine:
    """The line of one model and phase at one SM share.

    Without a prior it is 0 everywhere (so that work is tried, not refused) until 8 observations, or
    until another share of the model has a line.
    """

    __slots__ = ("_family", "_fit", "_lone_left", "_waiting", "line", "num_jobs", "prior", "share")

    def __init__(self, family: PhaseLines, share: float, prior: Line | None) -> None:
        self.share = share
        self.prior = prior
        self.num_jobs = 0  # jobs of this very phase that corrected the line
        self._family = family
        self._fit: Fit | None = None
        self._waiting: list[tuple[float, float, float]] = []  # observations before there is a fit
        self._lone_left = 0  # of the 64 jobs after a lone one
        self.line = _UNKNOWN
        self._borrow()

    @property
    def gains(self) -> Gains:
        """Factors on the prior's coefficients."""
        return EVEN if self._fit is None else self._fit.gains

    def is_corrected_by(self, num_beside: int) -> bool:
        """Count a job that ended; return whether it should correct the line, see `Interference`."""
        if num_beside <= 0:
            self._lone_left = _RECENT
            return True
        is_corrected = self._lone_left == 0
        self._lone_left = max(0, self._lone_left - 1)
        return is_corrected

    def observe(self, new: float, attended: float, seconds: float) -> None:
        """Learn that a job of so many new and attended tokens took `seconds`."""
        fit = self._fit or self._begin(new, attended, seconds)
        if fit is None:
            return
        fit.observe(new, attended, seconds)
        self.line = fit.line
        for other in self._family.by_share.values():
            if other._fit is None:
                other._borrow()

    def _begin(self, new: float, attended: float, seconds: float) -> Fit | None:
        """Return the fit to begin with; None while the first observations wait for more."""
        fit = self._family.start(self.share, self.prior)
        if fit is None:
            self._waiting.append((new, attended, seconds))
            if len(self._waiting) < _FEWEST:
                return None
            fit = Fit(_guess(self._waiting), bounds=_FREE, trust=_GUESS_TRUST)
            for each in self._waiting[:-1]:
                fit.observe(*each)
        self._waiting = []
        self._fit = fit
        self._family.seen.append(self)
        return fit

    def _borrow(self) -> None:
        fit = self._family.start(self.share, self.prior)
        self.line = _UNKNOWN if fit is None else fit.line


def _guess(first: list[tuple[float, float, float]]) -> Line:
    new, attended, seconds = (sum(each) / len(first) for each in zip(*first, strict=True))
    rest_s = (1 - _FIXED_PART) / 2 * seconds
    return Line(
        _FIXED_PART * seconds,
        rest_s / new if new > 0 else 0.0,
        rest_s / attended if attended > 0 else 0.0,
    )


class ModelLines:
    """All lines of one model. Those of mixed jobs are factors of `mixed_s` in a line's place."""

    def __init__(self, prior: Callable[[Phase, float], Line | None]) -> None:
        """prior: expected line of a phase at a share, None where nothing is known."""
        self._decode = PhaseLines(lambda share: prior(Phase.DECODE, share))
        self._prefill = PhaseLines(lambda share: prior(Phase.PREFILL, share))
        self._mixed = PhaseLines(
            lambda share: prior(Phase.MIXED, share) or _HALF_THE_SMALLER, _MIX_BOUNDS, _MIX_TRUST
        )

    def at(self, share: float) -> "JobLines":
        return JobLines(self._decode.at(share), self._prefill.at(share), self._mixed.at(share))


@dataclass(frozen=True, slots=True, eq=False)
class JobLines:
    """The lines of one model at one SM share.

    Mixed jobs also teach the parts that too few jobs of their own taught: prefill until a seed of
    it is confirmed by 8 prefill jobs; decode where there is neither a seed nor 8 decode jobs.
    """

    decode: ShareLine
    prefill: ShareLine
    mixed: ShareLine

    def of(self, phase: Phase) -> ShareLine:
        if phase is Phase.MIXED:
            return self.mixed
        return self.decode if phase is Phase.DECODE else self.prefill

    def observe(self, work: JobWork, step_s: float) -> None:
        """Learn that a step with this work took `step_s` without neighbours and copies."""
        phase = work.phase
        self.of(phase).num_jobs += 1
        if phase is Phase.MIXED:
            self._observe_mixed(work, step_s)
        elif phase is Phase.DECODE:
            self.decode.observe(work.num_rows, work.context, step_s)
        else:
            self.prefill.observe(work.num_tokens, work.attention, step_s)

    def _observe_mixed(self, work: JobWork, step_s: float) -> None:
        """Correct the factors, and often before them the parts."""
        decode, prefill = self.decode.line, self.prefill.line
        parts = _explained(
            decode.seconds(work.num_rows, work.context),
            prefill.seconds(work.num_tokens, work.attention),
            decode.fixed_s or prefill.fixed_s,
            step_s,
        )
        unexpected_s = step_s - mixed_s(self.mixed.line, *parts)
        count = self.mixed.num_jobs
        if count <= _LESSONS or count % _SELDOM == 0 or abs(unexpected_s) > _SURPRISE * step_s:
            parts = self._corrected(work, parts, step_s)
        decode_s, prefill_s, fixed_s = parts
        large, small = (decode_s, prefill_s) if decode_s > prefill_s else (prefill_s, decode_s)
        shared = max(min(small, fixed_s), _LEAST_PART * large)
        rest = max(0.0, small - shared)
        # A line's first coefficient stands alone: everything is in units of the shared seconds.
        self.mixed.observe(large / shared, rest / shared, step_s / shared)

    def _corrected(self, work: JobWork, parts: "_Parts", step_s: float) -> "_Parts":
        """Return the parts after those not yet known learnt from a mixed job of `step_s`."""
        # Such a part is what was expected of it and all that the job took longer than expected.
        decode_s, prefill_s, fixed_s = parts
        mix, least_s = self.mixed.line, _LEAST_PART * step_s
        if self.prefill.prior is None or self.prefill.num_jobs < KNOWN:
            part_s = prefill_s + step_s - mixed_s(mix, *parts)
            self.prefill.observe(work.num_tokens, work.attention, max(least_s, part_s))
            prefill_s = self.prefill.line.seconds(work.num_tokens, work.attention) or prefill_s
        if self.decode.prior is None and self.decode.num_jobs < KNOWN:
            part_s = decode_s + step_s - mixed_s(mix, decode_s, prefill_s, fixed_s)
            self.decode.observe(work.num_rows, work.context, max(least_s, part_s))
            line = self.decode.line
            decode_s = line.seconds(work.num_rows, work.context) or decode_s
            fixed_s = line.fixed_s or fixed_s
        return decode_s, prefill_s, fixed_s


_Parts = tuple[float, float, float]  # seconds: decode alone, prefill alone, a decode step's fixed


def _explained(decode_s: float, prefill_s: float, fixed_s: float, seconds: float) -> _Parts:
    """Return the parts of a mixed job that took `seconds`; one of 0 is not known."""
    # What is not known is what would explain the job if the parts shared their fixed cost and
    # nothing else: mixed jobs alone do not tell the parts apart.
    if decode_s > 0 and prefill_s > 0:
        return decode_s, prefill_s, fixed_s
    if decode_s <= 0 and prefill_s <= 0:
        part_s = seconds / (2 - _FIXED_PART)
        return part_s, part_s, _FIXED_PART * part_s
    other_s = max(_LEAST_PART * seconds, seconds - max(decode_s, prefill_s) + fixed_s)
    return (decode_s, other_s, fixed_s) if decode_s > 0 else (other_s, prefill_s, fixed_s)


class Interference:
    """Factors on what a job takes alone, by number of neighbours; of one model and phase.

    A job beside others says two things in one number, and always corrects the factor. While a lone
    job of its model, phase and share was among the last 64, what it takes alone is known and its
    line is left. Where no lone job comes (a busy unit) it corrects the line too, by the seconds
    divided by the factor: then the line follows the work's shape and the factors differ as the
    numbers of neighbours do; their product is right, their common level is not known.

    One simulated workload, three models under ADBS, no noise: decode mispredicted by 2.7 to 3.3 %;
    by 3.6 to 6.7 % if a job corrects only one of the two; by 2.5 to 3.1 % if factors are kept by
    which models and phases run beside and at which share: five times as many for little.
    """

    def __init__(self) -> None:
        self._fits: dict[int, Fit] = {}

    def factor(self, num_beside: int) -> float:
        """Return 1 for a lone job, else the factor of the nearest number of neighbours seen.

        Before any was seen: the loss that `muxcluster.placement.cost` assumes at full use.
        """
        if num_beside <= 0:
            return 1.0
        near = min(self._fits, key=lambda seen: abs(seen - num_beside), default=None)
        return (_EXPECTED_FACTOR if near is None else self._fits[near].line).base_s

    def observe(self, num_beside: int, ratio: float) -> None:
        """Learn that a job beside so many took `ratio` times what it would alone."""
        fit = self._fits.get(num_beside)
        if fit is None:
            first = self.factor(num_beside) / _EXPECTED_FACTOR.base_s
            fit = self._fits[num_beside] = Fit(_EXPECTED_FACTOR, (first, 1.0, 1.0, 1.0))
        fit.observe(0.0, 0.0, ratio)


class CopyTimes:
    """Seconds of copies between pool and host memory; learns the host link's speed."""

    def __init__(
        self,
        slot_bytes: Mapping[str, int],
        bytes_per_s: float | None = None,
        *,
        overlap: bool = True,
    ) -> None:
        """slot_bytes: of keys and values of one token slot, by model. bytes_per_s: of the link;
        None: not known. overlap: copies run beside the forward (T = max), else before it (T = sum).
        """
        self._slot_bytes, self._overlap = slot_bytes, overlap
        self._is_given = bytes_per_s is not None
        if bytes_per_s is None:
            self._fit = Fit(Line(0.0, _BYTE_S, 0.0), bounds=_FREE)
        else:
            self._fit = Fit(Line(0.0, 1 / bytes_per_s, 0.0))

    def num_bytes(self, job: Job) -> int:
        """Return the bytes that the job copies, of models whose slots are known."""
        total = 0
        for each in job.copies:
            slots = sum(int(part[:, 2].sum()) for part in (each.saves, each.moves, each.restores))
            total += slots * self._slot_bytes.get(each.model, 0)
        return total

    def copy_s(self, num_bytes: float) -> float:
        """Return the seconds of copies alone."""
        return self._fit.line.seconds(num_bytes, 0.0)

    def job_s(self, forward_s: float, num_bytes: float) -> float:
        """Return a job's seconds: max(T_exec, T_restore) where copies overlap, else the sum."""
        if not num_bytes:
            return forward_s
        copy_s = self.copy_s(num_bytes)
        return max(forward_s, copy_s) if self._overlap else forward_s + copy_s

    def observe(self, num_bytes: float, seconds: float) -> None:
        """Learn that copies alone took `seconds`."""
        self._fit.observe(num_bytes, 0.0, seconds)

    def observe_job(self, num_bytes: float, forward_s: float, seconds: float) -> float | None:
        """Learn from a job with these copies; return the seconds of its forward.

        forward_s: what its forward was expected to take. None where the copies had too great a part
        in it: then the link's speed is learnt, where they show.
        """
        copy_s = self.copy_s(num_bytes)
        is_small = copy_s <= _HIDDEN_PART * forward_s
        is_known = self._is_given or self._fit.num_seen >= _ENOUGH
        if forward_s > 0 and seconds > _SEEN_PART * forward_s and not (is_small and is_known):
            self.observe(num_bytes, seconds if self._overlap else seconds - forward_s)
            return None
        if forward_s > 0 and not is_small:
            return None
        return seconds if self._overlap else max(0.0, seconds - copy_s)


@dataclass(frozen=True, slots=True)
class PredictionError:
    """Of predictions of one model and phase, made before the job's end was known."""

    count: int  # ever; the others are of the last 512
    mean: float  # of |predicted / actual - 1|
    p90: float  # of the same
    bias: float  # mean of predicted / actual - 1, above 0 where jobs are faster than predicted


class ErrorWindow:
    """The last relative errors of one model and phase."""

    __slots__ = ("_count", "_errors")

    def __init__(self) -> None:
        self._errors: deque[float] = deque(maxlen=_ERRORS)
        self._count = 0

    def add(self, predicted_s: float, actual_s: float) -> None:
        """Note a prediction; `actual_s` is above 0."""
        self._count += 1
        self._errors.append(predicted_s / actual_s - 1)

    def error(self) -> PredictionError:
        """Return statistics of at least one prediction."""
        errors = np.array(self._errors)
        off = np.abs(errors)
        p90 = float(np.percentile(off, 90))
        return PredictionError(self._count, float(off.mean()), p90, float(errors.mean()))


class Margins:
    """By what factors jobs of one model overrun their predictions.

    Learnt from the last 256 jobs of any phase: percentiles of measured over predicted seconds, from
    1 to 2. Job times are not symmetric, so their mean error would not tell.
    """

    __slots__ = ("_count", "_ratios", "first_token", "token")

    def __init__(self) -> None:
        self._ratios = np.full(_OVERRUNS, _DOUBT)
        self._count = _DOUBTS
        self.token = _DOUBT  # 95 of 100 jobs end within it
        self.first_token = _DOUBT  # 99 of 100

    def add(self, predicted_s: float, actual_s: float) -> None:
        """Note a prediction, above 0, and what the job took."""
        self._ratios[self._count % _OVERRUNS] = actual_s / predicted_s
        self._count += 1
        if self._count % _RENEWED == 0:
            self.token, self.first_token = (
                self._percentile(_WITHIN),
                self._percentile(_FIRST_WITHIN),
            )

    def _percentile(self, part: float) -> float:
        seen = self._ratios[: self._count]
        place = ceil(part * (len(seen) - 1))
        return min(max(float(np.partition(seen, place)[place]), 1.0), _MOST_MARGIN)
