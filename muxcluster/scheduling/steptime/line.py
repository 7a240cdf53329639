"""Work of a job, its seconds as a line in it, of a mixed job from two lines, and the online fit."""

from dataclasses import replace
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.job import Job, Phase, Rows


class JobWork(NamedTuple):
    """Decoding rows and prompt tokens of one job."""

    num_rows: float = 0.0  # that decode; one more for each forced token that they compute
    context: float = 0.0  # tokens these attend to, the new ones included, summed over the rows
    num_tokens: float = 0.0  # of prompts
    attention: float = 0.0  # Σ count · (start + count / 2) over the prompts' rows

    @property
    def phase(self) -> Phase:
        """Phase by content: a mixed job without prompt tokens is a decode job."""
        if not self.num_tokens:
            return Phase.DECODE
        return Phase.MIXED if self.num_rows else Phase.PREFILL

    def with_rows(self, count: float, lengths: float) -> "JobWork":
        """Add `count` decoding rows, which attend to `lengths` tokens together."""
        num_rows, context, num_tokens, attention = self
        return JobWork(num_rows + count, context + lengths, num_tokens, attention)

    def with_prompt(self, start: float, count: float) -> "JobWork":
        """Add `count` prompt tokens from position `start` on."""
        num_rows, context, num_tokens, attention = self
        attention += count * (start + count / 2)
        return JobWork(num_rows, context, num_tokens + count, attention)


def work_of(job: Job) -> JobWork:
    """Return the work of one step of `job`, halfway through where it has several.

    A row of one token in a mixed job counts as decoding, and one with draft tokens, each of which
    counts as a row.
    """
    starts = job.rows.starts.astype(np.float64)
    if job.phase is Phase.DECODE:
        num_rows, context = decode_work(job.rows.starts, job.rows.counts)
        if num_rows > len(starts):
            return JobWork(num_rows, context)
        half = (job.max_steps + 1) / 2
        return JobWork(num_rows, float(np.add.reduce(starts)) + num_rows * half)
    drafts = job.rows.drafts
    if drafts is not None and job.phase is Phase.MIXED:
        return _work_with_drafts(job, drafts.counts > 0)
    counts = job.rows.counts.astype(np.float64)
    num_tokens = float(np.add.reduce(counts))
    attention = float(counts.dot(starts) + counts.dot(counts) / 2)
    if job.phase is Phase.PREFILL:
        return JobWork(0.0, 0.0, num_tokens, attention)
    is_one = (counts == 1).astype(np.float64)
    num_decodes = float(is_one.dot(is_one))
    starting = float(is_one.dot(starts))
    return JobWork(
        num_decodes,
        starting + num_decodes,
        num_tokens - num_decodes,
        attention - starting - num_decodes / 2,
    )


def _work_with_drafts(job: Job, has_drafts: NDArray[np.bool_]) -> JobWork:
    """Return the work of a mixed job. has_drafts: bool [rows]."""
    rows, others = job.rows, ~has_drafts
    plain = Rows(
        rows.table_rows[others], rows.starts[others], rows.counts[others], rows.samples[others]
    )
    work = decode_work(rows.starts[has_drafts], rows.counts[has_drafts])
    return work_of(replace(job, rows=plain)).with_rows(*work)


def decode_contexts(starts: NDArray[np.int32], counts: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the tokens that the new ones of each row attend to, themselves included, int64 [n].

    starts: tokens of each row with KV. counts: tokens that it computes.
    """
    many = counts.astype(np.int64)
    return many * starts + many * (many + 1) // 2


def decode_work(starts: NDArray[np.int32], counts: NDArray[np.int32]) -> tuple[int, int]:
    """Return the tokens that rows decode, and those that these attend to, the new ones included.

    starts: tokens of each row with KV. counts: tokens that it computes; forced ones count as rows.
    """
    num_rows = len(starts)
    num_tokens = int(np.add.reduce(counts))
    if num_tokens == num_rows:
        return num_rows, int(np.add.reduce(starts)) + num_rows
    return num_tokens, int(np.add.reduce(decode_contexts(starts, counts)))


LEAST, MOST = 0.25, 8.0  # bounds of a coefficient relative to its prior
_FORGET = 0.98  # weight of an observation one observation later: about 50 count
_FORGET_LEAST = 0.5
# When the mean relative error of about the last 1 / _TREND observations exceeds _CALM, old
# observations are forgotten faster, by _ALARM times the excess.
_CALM, _ALARM, _TREND = 0.05, 3.0, 0.3
_CLIP = 2.0  # an observation is clipped to within this factor of its prediction,
_LONE = 1.3  # and to this one unless the observation before was as far off: it may be an outlier
_STEP = 1.25  # one observation moves a coefficient by at most this factor
_PULL = 0.05  # weight of the pull of all gains to a common one, in observations
_SWEEPS = 2  # of coordinate descent per observation

Floats = NDArray[np.float64]
Gains = tuple[float, float, float, float]  # factors on the coefficients of a prior, in order
EVEN: Gains = (1.0, 1.0, 1.0, 1.0)


class Line(NamedTuple):
    """Seconds = max(floor_s, base_s + per_token_s · new + per_attended_s · attended).

    new: tokens that pass the layers (decode: rows). attended: in decode, tokens the rows attend to;
    in prefill, Σ count · (start + count / 2). No coefficient is negative.
    """

    base_s: float
    per_token_s: float
    per_attended_s: float
    # What a small prefill takes whatever its size, to read the weights and launch kernels. Without
    # it the line would miss small prefills by a quarter.
    floor_s: float = 0.0

    def seconds(self, new: float, attended: float) -> float:
        """Return the seconds of one job."""
        base_s, per_token_s, per_attended_s, floor_s = self
        line_s = base_s + per_token_s * new + per_attended_s * attended
        return line_s if line_s > floor_s else floor_s

    @property
    def fixed_s(self) -> float:
        """Seconds that a job of any size takes."""
        return self.base_s if self.base_s > self.floor_s else self.floor_s

    def each(self, new: Floats, attended: Floats) -> Floats:
        """Return the seconds of many jobs, [n]; bit for bit as `seconds` of each."""
        line_s = self.base_s + self.per_token_s * new + self.per_attended_s * attended
        return np.maximum(line_s, self.floor_s)

    def scaled(self, gains: Gains) -> "Line":
        """Return the line with every coefficient times its gain."""
        base, token, attended, floor = gains
        return Line(
            self.base_s * base,
            self.per_token_s * token,
            self.per_attended_s * attended,
            self.floor_s * floor,
        )

    def tokens_within(self, seconds: float, new: float, attended: float, start: int) -> float:
        """Return how many prompt tokens from position `start` fit beside `new` in `seconds`.

        The greatest root of the parabola that the line is in that number; inf where nothing grows.
        """
        left_s = seconds - self.base_s
        left_s -= self.per_token_s * new + self.per_attended_s * attended
        if seconds < self.floor_s or left_s < 0:
            return 0.0
        slope = self.per_token_s + self.per_attended_s * start
        if slope <= 0 and self.per_attended_s <= 0:
            return float("inf")
        root = sqrt(slope * slope + 2 * self.per_attended_s * left_s)
        return 2 * left_s / (slope + root) if slope + root > 0 else float("inf")


def mixed_s(mix: Line, first_s: float, second_s: float, fixed_s: float) -> float:
    """Return the seconds of one forward over two parts that take `first_s` and `second_s` alone.

    max(larger, f0 · min(smaller, fixed) + f1 · larger + f2 · max(0, smaller - fixed)), where fixed
    is what a decode step takes whatever its rows (weights read, kernels launched): all of it may be
    paid once for both. f0 = f2 = 1/2 is half of the smaller part; f0 = 0, f2 = 1 is parts that
    share their fixed cost and nothing else; f0 = f2 = 0 is the larger part. Never falls when a part
    grows. The factors have the places of a line's coefficients, so that a `Fit` can learn them:
    f0 base_s, f1 per_token_s, f2 per_attended_s.
    """
    large, small = (first_s, second_s) if first_s > second_s else (second_s, first_s)
    shared = small if small < fixed_s else fixed_s
    both_s = mix[0] * shared + mix[1] * large + mix[2] * (small - shared)
    return both_s if both_s > large else large


def each_mixed_s(mix: Line, first_s: Floats, second_s: float, fixed_s: float) -> Floats:
    """Return `mixed_s` for many first parts, [n], bit for bit."""
    large, small = np.maximum(first_s, second_s), np.minimum(first_s, second_s)
    shared = np.minimum(small, fixed_s)
    return np.maximum(large, mix[0] * shared + mix[1] * large + mix[2] * (small - shared))


def part_within(mix: Line, seconds: float, other_s: float, fixed_s: float) -> float:
    """Return the most seconds of one part with which `mixed_s` is at most `seconds`.

    Negative where the other part alone is too much.
    """
    if seconds < other_s:
        return -1.0
    shared = min(other_s, fixed_s)
    larger = (seconds - mix[0] * shared - mix[2] * (other_s - shared)) / mix[1]
    if larger >= other_s:
        return min(larger, seconds)
    left_s = seconds - mix[1] * other_s
    if left_s < mix[0] * shared:
        return left_s / mix[0]
    return min(other_s, shared + (left_s - mix[0] * shared) / mix[2])


class Fit:
    """A line that follows observations: recursive least squares on relative errors.

    Each coefficient is its prior times a gain. The gains minimise squared relative errors, old ones
    forgotten exponentially, plus a pull towards one gain common to all: where observations say
    nothing about a direction (always as many rows) the prior's proportions hold, and nothing winds
    up. A run of errors of one sign shortens the memory. Noise is bounded three times: observations
    are clipped, one moves each gain by at most a quarter, and gains stay within `bounds`. Gains are
    above 0, so a prediction never falls when tokens are added. The floor has its own gain, moved by
    jobs that lie on it.

    Compared with one gain for all and with normalised least mean squares, each clipped alike and at
    the best of five rates for the case, on simulated A100 jobs (7B at share 0.5, 13B at 0.3) of
    slower hardware than the prior's, 5 % noise, seeds not tuned on. Mean error of the next job:
    decode 0.7 and 0.8 % (one gain 1.1 and 1.1, LMS 0.9 and 1.1); prefill 1.6 and 1.9 % (one gain
    5.1 and 1.6, LMS 3.2 and 3.1). 2 % of jobs ten times as long add at most 0.3 to any of them,
    thanks to the clipping. After a step by 1.5 it is 9 to 18 % off over the next 30 jobs, where one
    gain at a rate of 0.4, too noisy otherwise, is 5 to 7 % off.
    """

    __slots__ = (
        *("_aa", "_ab", "_ac", "_bb", "_bc", "_cc", "_ta", "_tb", "_tc"),
        *("_bounds", "_gain", "_last", "_prior", "_pull", "_trend", "gains", "line", "num_seen"),
    )

    def __init__(
        self,
        prior: Line,
        gains: Gains = EVEN,
        bounds: tuple[float, float] = (LEAST, MOST),
        trust: float = 1.0,
    ) -> None:
        """Start at `prior` times `gains`, which are within `bounds`.

        trust: in the prior's proportions; with a greater one more observations outweigh it.
        """
        self._prior, self._bounds = prior, bounds
        self.gains = gains
        self.line = prior.scaled(gains)
        self._gain = sum(gains[:3]) / 3  # common to all
        self._trend, self._last = 0.0, 1.0  # mean error of late, and the last observed ratio
        self.num_seen = 0
        # The normal equations' matrix (symmetric) and right side, by coefficient.
        self._aa = self._bb = self._cc = trust
        self._ab = self._ac = self._bc = 0.0
        self._ta, self._tb, self._tc = (trust * gain for gain in gains[:3])
        self._pull = _PULL * trust

    def observe(self, new: float, attended: float, seconds: float) -> None:
        """Learn from a job; ignored unless `seconds` and what was predicted are above 0."""
        line = self.line
        predicted_s = line.seconds(new, attended)
        if not (seconds > 0 and predicted_s > 0):
            return
        self.num_seen += 1
        last, trend, gain = self._last, self._trend, self._gain
        self._last = found = _within(seconds / predicted_s, 1 / _CLIP, _CLIP)
        ratio = _within(found, min(last, 1 / _LONE), max(last, _LONE))
        keep = _within(_FORGET - _ALARM * (abs(trend) - _CALM), _FORGET_LEAST, _FORGET)
        self._trend = trend + _TREND * (ratio - 1 - trend)
        if predicted_s == line.floor_s:
            base, token, attend, floor = self.gains
            moved = floor * (1 + (1 - keep) * (ratio - 1))
            self._move(base, token, attend, _near(moved, floor))
        else:
            self._add(new, attended, gain / predicted_s, gain * ratio, keep)
            self._solve()

    def _add(self, new: float, attended: float, weight: float, target: float, keep: float) -> None:
        """Add to the normal equations that a job's parts, times `weight`, sum to `target`."""
        base_s, per_token_s, per_attended_s, _ = self._prior
        a, b, c = base_s * weight, per_token_s * new * weight, per_attended_s * attended * weight
        self._aa = keep * self._aa + a * a
        self._ab = keep * self._ab + a * b
        self._ac = keep * self._ac + a * c
        self._bb = keep * self._bb + b * b
        self._bc = keep * self._bc + b * c
        self._cc = keep * self._cc + c * c
        self._ta = keep * self._ta + a * target
        self._tb = keep * self._tb + b * target
        self._tc = keep * self._tc + c * target

    def _solve(self) -> None:
        """Move the gains by coordinate descent, each within one step and the bounds."""
        aa, bb, cc = self._aa, self._bb, self._cc
        ab, ac, bc = self._ab, self._ac, self._bc
        ta, tb, tc = self._ta, self._tb, self._tc
        common = (ta + tb + tc) / (aa + bb + cc + 2 * (ab + ac + bc))
        self._gain = common = _within(common, *self._bounds)
        pull = self._pull
        aa, bb, cc = aa + pull, bb + pull, cc + pull
        pull *= common
        ta, tb, tc = ta + pull, tb + pull, tc + pull
        old_a, old_b, old_c, floor = self.gains
        b, c = old_b, old_c
        for _ in range(_SWEEPS):
            a = _near((ta - ab * b - ac * c) / aa, old_a)
            b = _near((tb - ab * a - bc * c) / bb, old_b)
            c = _near((tc - ac * a - bc * b) / cc, old_c)
        self._move(a, b, c, floor)

    def _move(self, base: float, token: float, attend: float, floor: float) -> None:
        least, most = self._bounds
        self.gains = (
            _within(base, least, most),
            _within(token, least, most),
            _within(attend, least, most),
            _within(floor, least, most),
        )
        self.line = self._prior.scaled(self.gains)


def _near(gain: float, old: float) -> float:
    return _within(gain, old / _STEP, old * _STEP)


def _within(value: float, least: float, most: float) -> float:
    return least if value < least else (most if value > most else value)
