"""Estimated output tokens of running requests, from the decode rate of those that ended lately."""

_LEAST_TOKENS = 16  # shorter outputs are not timed: when they end says little about the rate
_MEMORY = 0.9  # weight of earlier requests, at every request that ends


class TokenClock:
    """Counts the output tokens that a request gets over time; all requests decode alike.

    Neither unit nor engine reports how far each request is, so the rate comes from ended ones.
    """

    def __init__(self) -> None:
        self.tokens = 0.0  # of a request that has decoded since the beginning
        self.now = 0.0
        self._tokens, self._seconds = 0.0, 0.0

    def advance(self, now: float) -> None:
        """Set the time, seconds, which never goes back."""
        if self._seconds > 0:
            self.tokens += (now - self.now) * self._tokens / self._seconds
        self.now = now

    def ended(self, tokens: int, start_s: float) -> None:
        """Learn from a request that got its first token at `start_s` and ended with `tokens`."""
        if tokens >= _LEAST_TOKENS and self.now > start_s:
            self._tokens = self._tokens * _MEMORY + tokens
            self._seconds = self._seconds * _MEMORY + self.now - start_s
