"""Seconds of copies between pool and host memory, beside a job's forward or before it."""

from collections.abc import Mapping

from muxcluster.core.job import Job
from muxcluster.scheduling.steptime.line import Fit, Line

_GUESS = 1 / 8e9
"""Seconds a byte before anything is known: half of what PCIe 3 carries."""
_FREE = (1e-3, 1e3)
_SEEN_PART = 1.25
"""A job must last so many times its forward for its copies to be seen in it."""
_ENOUGH = 16
"""Observations from which on the link is known: a slow job with few bytes is a slow forward."""
_HIDDEN_PART = 0.25
"""Copies expected to take less than this part of the forward leave its seconds readable."""


class CopyTimes:
    """Learns the host link's speed.

    slot_bytes: of keys and values of one token slot, by model. bytes_per_s: of the link; None: not
    known. overlap: copies run beside the forward (T = max), else before it (T = sum).
    """

    def __init__(
        self,
        slot_bytes: Mapping[str, int],
        bytes_per_s: float | None = None,
        *,
        overlap: bool = True,
    ) -> None:
        self._slot_bytes, self._overlap = slot_bytes, overlap
        self._is_given = bytes_per_s is not None
        if bytes_per_s is None:
            self._fit = Fit(Line(0.0, _GUESS, 0.0), bounds=_FREE)
        else:
            self._fit = Fit(Line(0.0, 1 / bytes_per_s, 0.0))

    def num_bytes(self, job: Job) -> int:
        """That the job copies, of models whose slots are known."""
        total = 0
        for each in job.copies:
            slots = sum(int(part[:, 2].sum()) for part in (each.saves, each.moves, each.restores))
            total += slots * self._slot_bytes.get(each.model, 0)
        return total

    def copy_s(self, num_bytes: float) -> float:
        """Of so many bytes."""
        return self._fit.line.seconds(num_bytes, 0.0)

    def together_s(self, forward_s: float, num_bytes: float) -> float:
        """Of a job with these copies: max(T_exec, T_restore) where they overlap, else the sum."""
        copy_s = self.copy_s(num_bytes)
        return max(forward_s, copy_s) if self._overlap else forward_s + copy_s

    def observe(self, num_bytes: float, seconds: float) -> None:
        """Copying that much took `seconds`."""
        self._fit.observe(num_bytes, 0.0, seconds)

    def observe_job(self, num_bytes: float, forward_s: float, seconds: float) -> float | None:
        """A job with these copies, whose forward was expected to take `forward_s`, took `seconds`.

        The seconds of its forward; None where the copies had too great a part in them, and then the
        link's speed is learnt where they show.
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
