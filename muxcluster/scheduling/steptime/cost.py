"""What the scheduler may ask of a cost model."""

from typing import Protocol


class StepCost(Protocol):
    """Predicted seconds of one job; `share` is an SM share in (0, 1]."""

    def prefill_s(self, model: str, share: float, num_tokens: int) -> float:
        """Seconds to prefill `num_tokens` tokens in one job."""
        ...

    def decode_s(self, model: str, share: float, num_rows: int) -> float:
        """Seconds of one decode step over `num_rows` sequences."""
        ...
