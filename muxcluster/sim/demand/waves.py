"""Batch load in a closed loop: the next wave starts when all of the last has ended (BROS §7)."""

import math
from dataclasses import dataclass

from muxcluster.core.request import ServiceClass
from muxcluster.workload.arrival import Arrival
from muxcluster.workload.lengths import Lengths
from muxcluster.workload.seeds import rng_for


@dataclass(frozen=True, slots=True)
class Waves:
    """Waves of `size` batch requests of a model.

    Raises ValueError for a size below 1 or an end that is not finite.
    """

    model: str
    size: int
    lengths: Lengths
    end_s: float  # no wave starts then or later
    seed: int = 0  # of the lengths, which also depend on the unit

    def __post_init__(self) -> None:
        if self.size < 1 or not math.isfinite(self.end_s):
            raise ValueError(f"{self.model!r}: needs waves of 1 request at least, and an end")


class WaveSource:
    """The waves of one unit."""

    def __init__(self, waves: Waves, unit_id: str) -> None:
        self._waves = waves
        self._unit_id = unit_id
        self._rng = rng_for(waves.seed, "waves", waves.model, unit_id)
        self._num_waves = 0
        self._num_open = 0
        self._begun_s = -math.inf

    def start(self, now: float) -> list[Arrival]:
        """Return the next wave, all at `now`; empty where that is too late."""
        waves = self._waves
        if now >= waves.end_s:
            return []
        prompts, outputs = waves.lengths.draw(self._rng, waves.size)
        name = f"{waves.model}/wave {self._num_waves}/{self._unit_id}"
        self._num_waves += 1
        self._num_open, self._begun_s = waves.size, now
        lengths = zip(prompts.tolist(), outputs.tolist(), strict=True)
        return [
            Arrival(now, f"{name}/{i}", waves.model, prompt, output, ServiceClass.BATCH)
            for i, (prompt, output) in enumerate(lengths)
        ]

    def end_one(self, now: float) -> bool:
        """Note that a request of the open wave has ended; return True for the last one.

        Raises ValueError where all were refused: the loop would never advance.
        """
        self._num_open -= 1
        if self._num_open == 0 and now == self._begun_s:
            raise ValueError(f"no request of a wave of {self._waves.model!r} can run")
        return self._num_open == 0
