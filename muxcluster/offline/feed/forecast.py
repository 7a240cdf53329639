"""Expected working set of interactive requests: the most they held in the last seconds."""

from collections import deque

WINDOW_S = 30.0  # a burst of interactive load within this time finds the memory of the last one


class WorkingSetForecast:
    """The largest working set of the last `window_s` seconds.

    A rise counts at once, a fall when the window has passed: memory that batch requests took
    meanwhile would soon be taken back from them.
    """

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._peaks: deque[tuple[float, float]] = deque()

    def expect(self, now: float, held_bytes: float) -> float:
        """Return bytes to reserve. held_bytes: held at `now` (seconds, never going back)."""
        peaks = self._peaks
        while peaks and peaks[-1][1] <= held_bytes:
            peaks.pop()
        peaks.append((now, held_bytes))
        while peaks[0][0] < now - self._window_s:
            peaks.popleft()
        return peaks[0][1]
