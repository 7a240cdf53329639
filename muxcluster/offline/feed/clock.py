"""How many tokens a running request has got, told from those that ended lately."""

_LEAST_TOKENS = 16
"""Of outputs that are timed: shorter ones say more about when we were asked."""
_MEMORY = 0.9
"""Weight of what was known before, at every request that ends."""


class TokenClock:
    """Output tokens that a request gets from one moment to another; all decode alike.

    Neither unit nor engine tells a plan how far each request is; those that end do.
    """

    def __init__(self) -> None:
        self.tokens = 0.0
        """That a request would have had since the beginning."""
        self.now = 0.0
        self._tokens, self._seconds = 0.0, 0.0

    def advance(self, now: float) -> None:
        """It is `now` (seconds, never going back)."""
        if self._seconds > 0:
            self.tokens += (now - self.now) * self._tokens / self._seconds
        self.now = now

    def ended(self, tokens: int, start_s: float) -> None:
        """A request that got its first token at `start_s` has ended with so many."""
        if tokens >= _LEAST_TOKENS and self.now > start_s:
            self._tokens = self._tokens * _MEMORY + tokens
            self._seconds = self._seconds * _MEMORY + self.now - start_s
