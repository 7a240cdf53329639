"""Interface of all cost models."""

from collections.abc import Sequence
from typing import Protocol

from muxcluster.placement.shapes.shape import ModelShape


class Cost(Protocol):
    """Predicted seconds of jobs on one kind of GPU in one dtype.

    `tp` GPUs work together, on `share` of the SMs of each; a draw is the share of the mesh's memory
    bandwidth that the job takes while it runs, 0 to 1.
    """

    def __hash__(self) -> int:
        """Equal cost models predict alike."""
        ...

    def prefill_s(
        self, model: ModelShape, tp: int, share: float, batch: float, prompt_tokens: float
    ) -> float:
        """One forward over `batch` prompts of `prompt_tokens` each."""
        ...

    def decode_s(
        self, model: ModelShape, tp: int, share: float, batch: float, context: float
    ) -> float:
        """One token for each of `batch` sequences of `context` tokens."""
        ...

    def mixed_s(
        self, model: ModelShape, tp: int, share: float, prefill_s: float, decode_s: float
    ) -> float:
        """One forward over what takes `prefill_s` and `decode_s` apart; at least the larger."""
        ...

    def turn_s(self, rows: float, new: float) -> float:
        """What the unit itself does between a job and the next one (`profile.Turn`)."""
        ...

    def prefill_draw(
        self, model: ModelShape, tp: int, share: float, batch: float, prompt_tokens: float
    ) -> float:
        """Bandwidth drawn by such a prefill."""
        ...

    def decode_draw(
        self, model: ModelShape, tp: int, share: float, batch: float, context: float
    ) -> float:
        """Bandwidth drawn by such a step."""
        ...

    def slowdown(self, draws: Sequence[float]) -> float:
        """Factor ≥ 1 by which jobs with these draws, at the same time, are slower than alone."""
        ...
