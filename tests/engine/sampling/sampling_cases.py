"""Batches for the sampler: one row a request, histories of random tokens."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from muxcluster.core.sampling import SamplingParams
from muxcluster.engine.sampling.parameters import SequenceSampling
from muxcluster.engine.sampling.sampler import Sampled, sample

EOS = 2


@dataclass
class SamplingCase:
    """logits: [requests, vocab]; request i is in row i, with prompts and outputs as given."""

    logits: Tensor
    state: SequenceSampling
    history: Tensor
    lengths: np.ndarray

    def sample(self, rows: list[int] | None = None) -> Sampled:
        """One call over `rows` (default all), in that order."""
        chosen = np.arange(len(self.lengths)) if rows is None else np.array(rows, dtype=np.int64)
        table_rows = chosen.astype(np.int32)
        return sample(
            self.logits[torch.from_numpy(chosen)],
            table_rows,
            self.history,
            self.lengths[chosen],
            self.state,
        )


def build_case(
    params: list[SamplingParams],
    *,
    vocab_size: int = 100,
    num_prompt_tokens: int = 7,
    num_output_tokens: int = 5,
    seed: int = 0,
) -> SamplingCase:
    rng = np.random.default_rng(seed)
    state = SequenceSampling(len(params), vocab_size, (EOS,))
    for row, sampling in enumerate(params):
        state.admit(row, sampling, num_prompt_tokens)
    length = num_prompt_tokens + num_output_tokens
    # What lies behind a history is left over from other requests; it must not be read.
    history = rng.integers(0, vocab_size, (len(params), length + 20))
    logits = torch.from_numpy(3 * rng.standard_normal((len(params), vocab_size))).float()
    lengths = np.full(len(params), length, dtype=np.int32)
    return SamplingCase(logits, state, torch.from_numpy(history).int(), lengths)


def many_draws(logits: Tensor, sampling: SamplingParams, num_draws: int, first: int = 0):
    """Output tokens first .. first + num_draws of one request under constant logits [vocab]."""
    state = SequenceSampling(1, len(logits), (EOS,))
    state.admit(0, sampling, 1)
    return sample(
        logits.expand(num_draws, -1),
        np.zeros(num_draws, dtype=np.int32),
        torch.zeros(1, 1, dtype=torch.int32),
        np.arange(1 + first, 1 + first + num_draws, dtype=np.int32),
        state,
    ).tokens
