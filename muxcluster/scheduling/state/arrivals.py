"""The interactive requests that came of late: what the next ones will ask for."""

from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_RECENT = 64
# A model whose last interactive request is so long ago expects none: its next one may wait for a
# batch job of any length.
_RARE_S = 60.0


class FirstTokens(NamedTuple):
    """Targets and prompts of requests, each [n]."""

    ttft_s: NDArray[np.float64]
    num_tokens: NDArray[np.float64]  # of the prompts


class RecentArrivals:
    """The last 64 interactive requests of one model that had a target for the first token."""

    def __init__(self) -> None:
        self.count = 0  # ever
        self._recent: deque[tuple[float, float]] = deque(maxlen=_RECENT)
        self._last_s = -np.inf

    def add(self, ttft_s: float, num_tokens: int, now: float) -> None:
        """Note a request of `num_tokens` prompt tokens."""
        self.count += 1
        self._recent.append((ttft_s, num_tokens))
        self._last_s = now

    def are_expected(self, now: float) -> bool:
        """True if a request came within the last minute."""
        return now - self._last_s < _RARE_S

    def first_tokens(self) -> FirstTokens:
        """Return what they asked for."""
        ttft_s, num_tokens = np.array(self._recent, dtype=np.float64).reshape(-1, 2).T
        return FirstTokens(ttft_s, num_tokens)
