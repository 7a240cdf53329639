"""How often the draft tokens of a request, or of a model's requests, were right."""

from dataclasses import dataclass


@dataclass(slots=True)
class DraftRecord:
    """Sums over checked drafts, old ones faded: their quotient is the chance that a draft is right.

    Drafts of a row are checked one after the other up to the first wrong one; those behind it say
    nothing.
    """

    fading: float  # weight of what was known before, at each job with drafts
    num_right: float = 0.0
    num_checked: float = 0.0
    num_without: int = 0  # jobs since the last drafts, which were not expected to gain

    def add(self, num_drafts: int, num_right: int) -> None:
        """Note a job with drafts, of which the first `num_right` were right."""
        self.num_right = self.fading * self.num_right + num_right
        self.num_checked = self.fading * self.num_checked + min(num_right + 1, num_drafts)
        self.num_without = 0

    def chance(self, expected: float, weight: float) -> float:
        """Return the chance that a draft is right whose predecessors are, below 1.

        expected: before any was checked, below 1; it counts as `weight` checked ones.
        """
        return (expected * weight + self.num_right) / (weight + self.num_checked)
