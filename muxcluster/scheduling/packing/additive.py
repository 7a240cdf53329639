"""Hybrid packing with the paper's size of a job: it grows by trial and falls back after a miss.

The baseline that predicted sizes are measured against (bench/hybrid).
"""

import math

from muxcluster.core.job import Job, Phase
from muxcluster.scheduling.memory.admission import Memory
from muxcluster.scheduling.packing.batch import Draft, Limits, Turn
from muxcluster.scheduling.packing.hybrid import HybridPacking
from muxcluster.scheduling.steptime.model import StepTimes


class AdditivePacking(HybridPacking):
    """BROS Alg. 1: the size of a job is additive, with a reset.

    The number of rows starts at `first_rows`, grows by `more_rows` after each job that was full and
    met every target in reach, and starts again after one that did not. Interactive rows are not
    left out for it, batch rows fill up to it. A job that had room left says nothing.
    """

    def __init__(self, memory: Memory, limits: Limits, times: StepTimes) -> None:
        super().__init__(memory, limits, times)
        self._sizes: dict[str, int] = {}
        self._last: dict[str, tuple[float, bool]] = {}

    def _limit_s(self, draft: Draft, turn: Turn, phase: Phase) -> float:
        """Return no limit: targets in reach bound the size after the step, not the step."""
        self._last[draft.model.name] = self._slack.for_prompts(draft, turn), False
        return math.inf

    def _room(self, draft: Draft) -> int:
        size = self._sizes.get(draft.model.name, self._limits.first_rows)
        return max(0, min(size, self._limits.max_decode_rows) - len(draft))

    def observe(self, job: Job, seconds: float, num_beside: int) -> None:
        """Let the size grow, or start again."""
        super().observe(job, seconds, num_beside)
        name, first = job.model, self._limits.first_rows
        size = self._sizes.get(name, first)
        most_s, _ = self._last.get(name, (math.inf, False))
        if seconds > most_s:
            self._sizes[name] = first
        elif len(job.rows) >= size:
            self._sizes[name] = size + self._limits.more_rows
