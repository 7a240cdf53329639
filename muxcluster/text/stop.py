"""Stop strings in a stream of text (Knuth–Morris–Pratt, one automaton a string)."""

from collections.abc import Sequence


class _Pattern:
    """One stop string, and the length of its prefix that ends the text so far."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._fallback = _fallbacks(text)
        self.num_matched = 0

    def advance(self, char: str) -> bool:
        """Take the next character; return True if the text now ends with the stop string."""
        matched = self.num_matched
        while matched and self.text[matched] != char:
            matched = self._fallback[matched]
        self.num_matched = matched + (self.text[matched] == char)
        return self.num_matched == len(self.text)


def _fallbacks(text: str) -> list[int]:
    """[n] = length of the longest proper prefix of `text` that ends text[:n]."""
    table = [0] * (len(text) + 1)
    length = 0
    for index in range(1, len(text)):
        while length and text[index] != text[length]:
            length = table[length]
        length += text[index] == text[length]
        table[index + 1] = length
    return table


class StopMatcher:
    """Passes text on until a stop string is complete, holding back what may begin one.

    The stop string that is complete first matches, the longest of those that end together, however
    the text is cut into pushes. Raises ValueError for an empty stop string.

    matched: the stop string that was found, None before.
    """

    def __init__(self, stops: Sequence[str], include_in_output: bool = False) -> None:
        if not all(stops):
            raise ValueError("a stop string is empty")
        # longest first, so that the first to report is the longest
        self._patterns = [_Pattern(stop) for stop in sorted(stops, key=len, reverse=True)]
        self._include = include_in_output
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Return the text that may be shown now; empty after a match."""
        if self.matched is not None:
            return ""
        if not self._patterns:
            return text
        text, num_old = self._held + text, len(self._held)
        for end in range(num_old, len(text)):
            stop = self._advance(text[end])
            if stop is not None:
                self.matched = stop
                self._held = ""
                return text[: end + 1 - (0 if self._include else len(stop))]
        num_held = max((pattern.num_matched for pattern in self._patterns), default=0)
        shown = len(text) - num_held
        self._held = text[shown:]
        return text[:shown]

    def finish(self) -> str:
        """Return the text held back, at the end of an output without a match."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> str | None:
        """Take `char` in every automaton; return the longest stop string that it completes."""
        complete = [pattern.text for pattern in self._patterns if pattern.advance(char)]
        return complete[0] if complete else None
