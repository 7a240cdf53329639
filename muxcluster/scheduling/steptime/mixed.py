"""Seconds of a mixed forward from those of its parts: what both parts pay is paid once."""

import numpy as np
from numpy.typing import NDArray

from muxcluster.scheduling.steptime.by_share import BASE_PART, LinesByShare, Prior
from muxcluster.scheduling.steptime.line import Line

_LEAST_PART = 1e-9
"""Of the larger part, what is at least taken for the other, and for what may be shared."""
Parts = tuple[float, float, float]
"""Seconds: of decode alone, of prefill alone, and of a decode step whatever its rows."""
Floats = NDArray[np.float64]


def together_s(mix: Line, first_s: float, second_s: float, fixed_s: float) -> float:
    """One forward over both parts, of which prefill and decode alone would take so long.

    max(larger, f0 · min(smaller, fixed) + f1 · larger + f2 · max(0, smaller - fixed)), where fixed
    is what a decode step takes whatever its rows (weights read, kernels launched): all of it may be
    paid once for both. f0 = f2 = 1/2 is half of the smaller part; f0 = 0, f2 = 1 is parts that
    share their fixed cost and nothing else; f0 = f2 = 0 is the larger part. Never falls when a part
    grows. The factors stand in a line's place: f0 base_s, f1 per_token_s, f2 per_attended_s.
    """
    large, small = (first_s, second_s) if first_s > second_s else (second_s, first_s)
    shared = small if small < fixed_s else fixed_s
    mixed_s = mix[0] * shared + mix[1] * large + mix[2] * (small - shared)
    return mixed_s if mixed_s > large else large


def each_together_s(mix: Line, first_s: Floats, second_s: float, fixed_s: float) -> Floats:
    """Of many first parts, [n]; bit for bit as `together_s` of each."""
    large, small = np.maximum(first_s, second_s), np.minimum(first_s, second_s)
    shared = np.minimum(small, fixed_s)
    return np.maximum(large, mix[0] * shared + mix[1] * large + mix[2] * (small - shared))


def part_within(mix: Line, seconds: float, other_s: float, fixed_s: float) -> float:
    """The most seconds of one part, so that with `other_s` it takes at most `seconds`.

    Below 0 where the other part alone is too much.
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


_FIRST = Line(0.5, 1.0, 0.5)
"""Half of the smaller part is added: what the simulator assumes."""
_BOUNDS = (0.02, 20.0)
"""Of the factors, times those: f0 may all but vanish."""
_TRUST = 0.05
"""In them: little, as what parts share differs from machine to machine. Where they share their
fixed cost and the lines are right, 20 jobs leave a mean error of 2.8 %; a trust of 0.2, 5.4 %."""


def explained(parts: Parts, seconds: float) -> Parts:
    """The parts of a job that took `seconds`; those known are above 0.

    What is not known is what would explain the job if the parts shared their fixed cost and nothing
    else. Mixed jobs alone do not tell parts apart; this is how they are told apart.
    """
    decode_s, prefill_s, fixed_s = parts
    if decode_s > 0 and prefill_s > 0:
        return parts
    if decode_s <= 0 and prefill_s <= 0:
        part_s = seconds / (2 - BASE_PART)
        return part_s, part_s, BASE_PART * part_s
    other_s = max(_LEAST_PART * seconds, seconds - max(decode_s, prefill_s) + fixed_s)
    return (decode_s, other_s, fixed_s) if decode_s > 0 else (other_s, prefill_s, fixed_s)


class MixedFactors(LinesByShare):
    """The factors of mixed jobs by (model, SM share), learnt as such jobs end."""

    def __init__(self, prior: Prior) -> None:
        """prior: what is known; where that is nothing, half of the smaller part."""
        super().__init__(lambda *key: prior(*key) or _FIRST, _BOUNDS, _TRUST)

    def observe_parts(self, model: str, share: float, parts: Parts, seconds: float) -> None:
        """A job took `seconds`. parts: as `explained`."""
        decode_s, prefill_s, fixed_s = parts
        large, small = (decode_s, prefill_s) if decode_s > prefill_s else (prefill_s, decode_s)
        shared = max(min(small, fixed_s), _LEAST_PART * large)
        rest = max(0.0, small - shared)
        # A line's first coefficient stands alone: everything is in units of the shared seconds.
        self.observe(model, share, large / shared, rest / shared, seconds / shared)
