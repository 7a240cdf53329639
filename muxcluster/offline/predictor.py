"""How long a batch job would take in a given order: what a predictor is asked, and its answer."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from muxcluster.offline.feed.feeder import BatchFeeder
from muxcluster.offline.prefix.prompts import Prompts


@dataclass(frozen=True, slots=True, eq=False)
class UseOverTime:
    """Means of equal spans of `bin_s` seconds, float64 [bins] each.

    compute, memory: seconds of all compute and of all memory bandwidth (BlendServe §2.3) used a
    second; those of perfect overlap reach 1 together. held: share of the KV pool that live
    sequences hold.
    """

    bin_s: float
    compute: NDArray[np.float64]
    memory: NDArray[np.float64]
    held: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """What one order of a job came to.

    makespan_s: from the start of the first request to the last token. prompt_tokens,
    output_tokens: of the requests that ran. saved_tokens: prompt tokens that were found computed.
    recomputed_tokens: computed again after their memory was taken. num_refused: requests too long
    for the model or its memory.
    """

    makespan_s: float
    prompt_tokens: int
    output_tokens: int
    saved_tokens: int
    recomputed_tokens: int
    num_refused: int
    use: UseOverTime

    @property
    def tokens_per_s(self) -> float:
        """Prompt tokens, saved ones too, and output tokens a second; 0 where nothing ran."""
        total = self.prompt_tokens + self.output_tokens
        return total / self.makespan_s if total else 0.0

    @property
    def saving_ratio(self) -> float:
        """Share of the prompt tokens that was not computed (BatchLLM Eq. 2)."""
        return self.saved_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class MakespanPredictor(Protocol):
    """Predicts how long a unit takes for a job."""

    def predict(
        self, prompts: Prompts, output_tokens: NDArray[np.int64], feeder: BatchFeeder
    ) -> Prediction:
        """The job's requests start as `feeder`, which is for these prompts, hands them out.

        output_tokens: int64 [n], by prompt number, as many as each gets.
        """
        ...
