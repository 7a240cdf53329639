"""Which groups of a split make an SM share.

Apart from parts.py: the checks of a new machine (bench/gpu/facts.py) use it without transformers.
"""

import math

from muxcluster.engine.gpu.driver import DriverError, SmResource, SmSplit

_EPSILON = 1e-6


class TwoEnds:
    """Takes the multiprocessors of one split from its two ends.

    Shares of opposite ends that together fill at most the device have no group in common: both cut
    the row of groups at the same place if they add up to one. Multiprocessors in no group lie at
    the far end, beyond the last group.
    """

    def __init__(self, split: SmSplit) -> None:
        """Raises DriverError where the device has too few groups for two parts."""
        if len(split.groups) < 2:
            raise DriverError(f"{split.num_sms} multiprocessors make {len(split.groups)} group")
        self._split = split

    def from_start(self, share: float) -> tuple[SmResource, ...]:
        """Return about `share` of the multiprocessors, 0 < share < 1; at least one group."""
        return self._split.groups[: self._cut(share)]

    def from_end(self, share: float) -> tuple[SmResource, ...]:
        """As `from_start`, with the multiprocessors in no group if they combine with groups."""
        groups = self._split.groups[self._cut(1.0 - share) :]
        if self._split.rest is None or not self._split.combines_rest:
            return groups
        return (*groups, self._split.rest)

    def _cut(self, share: float) -> int:
        """Return the number of groups before the place where `share` of the device ends."""
        exact = share * self._split.num_sms / self._split.group_sms
        return min(max(math.floor(exact + 0.5 + _EPSILON), 1), len(self._split.groups) - 1)
