"""Clocks: drivers own one, state machines get the time as an argument."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds from any monotonic origin."""

    def now(self) -> float:
        """The current time in seconds."""
        ...


class MonotonicClock:
    """The real clock; comparable between processes of one node."""

    def now(self) -> float:
        return time.monotonic()
