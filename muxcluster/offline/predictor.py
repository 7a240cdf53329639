"""Protocol of predictors of a batch job's makespan, and their answer."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from muxcluster.offline.feed.feeder import BatchFeeder
from muxcluster.offline.prefix.prompts import Prompts


@dataclass(frozen=True, slots=True, eq=False)
class UseOverTime:
    """Use of a unit over time: means of equal spans of `bin_s` seconds, float64 [bins] each."""

    bin_s: float
    # Resource seconds used per second, of all compute and all bandwidth (BlendServe §2.3); with
    # perfect overlap both are 1.
    compute: NDArray[np.float64]
    memory: NDArray[np.float64]
    held: NDArray[np.float64]  # share of the KV pool that live sequences hold


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """Predicted result of a job in one order."""

    makespan_s: float  # from the start of the first request to the last token
    prompt_tokens: int  # of the requests that ran, as output_tokens
    output_tokens: int
    saved_tokens: int  # prompt tokens found in the cache
    recomputed_tokens: int  # computed again after their memory was taken
    num_refused: int  # requests too long for the model or its memory
    use: UseOverTime

    @property
    def tokens_per_s(self) -> float:
        """Return prompt tokens (saved ones too) and output tokens a second; 0 if nothing ran."""
        total = self.prompt_tokens + self.output_tokens
        return total / self.makespan_s if total else 0.0

    @property
    def saving_ratio(self) -> float:
        """Return the share of the prompt tokens that was not computed (BatchLLM Eq. 2)."""
        return self.saved_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class MakespanPredictor(Protocol):
    """Predicts how long a unit takes for a job."""

    def predict(
        self, prompts: Prompts, output_tokens: NDArray[np.int64], feeder: BatchFeeder
    ) -> Prediction:
        """Predict the job if its requests start as `feeder`, which is for these prompts, says.

        output_tokens: int64 [n], the true lengths by prompt number.
        """
        ...
