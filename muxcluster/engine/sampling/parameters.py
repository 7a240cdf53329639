"""Sampling parameters of all sequences of one model as arrays, gathered by each batch."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.sampling import SamplingParams

_SEED_BITS = (1 << 64) - 1


@dataclass(frozen=True, slots=True, eq=False)
class TokenBias:
    """Addition to a row's logits: tokens int64 [n], each once; values float32 [n]."""

    tokens: NDArray[np.int64]
    values: NDArray[np.float32]


class SequenceSampling:
    """Sampling parameters of one model's sequences as in `SamplingParams`, by table row."""

    def __init__(
        self,
        max_seqs: int,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        *,
        is_embedding: bool = False,
    ) -> None:
        """vocab_size: logits of a row. is_embedding: they are hidden states, none is sampled."""
        self.is_embedding = is_embedding
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids
        self.num_prompt_tokens = np.zeros(max_seqs, dtype=np.int64)
        self.temperature = np.zeros(max_seqs, dtype=np.float64)
        self.top_k = np.full(max_seqs, vocab_size, dtype=np.int64)
        self.top_p = np.ones(max_seqs, dtype=np.float64)
        self.min_p = np.zeros(max_seqs, dtype=np.float64)
        self.repetition_penalty = np.ones(max_seqs, dtype=np.float32)
        self.frequency_penalty = np.zeros(max_seqs, dtype=np.float32)
        self.presence_penalty = np.zeros(max_seqs, dtype=np.float32)
        self.seed = np.zeros(max_seqs, dtype=np.uint64)
        self.min_tokens = np.zeros(max_seqs, dtype=np.int64)
        self.wants_logprobs = np.zeros(max_seqs, dtype=np.bool_)
        self.num_top = np.zeros(max_seqs, dtype=np.int64)
        self.biases: dict[int, TokenBias] = {}
        self.end_tokens: dict[int, NDArray[np.int64]] = {}
        self.has_bias = np.zeros(max_seqs, dtype=np.bool_)
        self.needs_host = np.zeros(max_seqs, dtype=np.bool_)

    def admit(self, row: int, sampling: SamplingParams, num_prompt_tokens: int) -> None:
        """Overwrite everything known of `row` with a new sequence's parameters.

        Raises ValueError if `logit_bias` names a token outside the vocabulary; the row is then
        unchanged.
        """
        bias = self._bias(sampling)
        self.num_prompt_tokens[row] = num_prompt_tokens
        self.temperature[row] = sampling.temperature
        limit = self.vocab_size if sampling.top_k is None else sampling.top_k
        self.top_k[row] = min(limit, self.vocab_size)
        self.top_p[row] = sampling.top_p
        self.min_p[row] = sampling.min_p
        self.repetition_penalty[row] = sampling.repetition_penalty
        self.frequency_penalty[row] = sampling.frequency_penalty
        self.presence_penalty[row] = sampling.presence_penalty
        self.seed[row] = sampling.seed & _SEED_BITS
        self.wants_logprobs[row] = sampling.logprobs is not None
        self.num_top[row] = sampling.logprobs or 0
        self.has_bias[row] = bias is not None
        self.needs_host[row] = (
            self.is_embedding
            or bias is not None
            or sampling.logprobs is not None
            or sampling.constraint is not None
            or sampling.repetition_penalty != 1
            or sampling.frequency_penalty != 0
            or sampling.presence_penalty != 0
        )
        self.biases.pop(row, None)
        if bias is not None:
            self.biases[row] = bias
        self._set_min_tokens(row, sampling)

    def _bias(self, sampling: SamplingParams) -> TokenBias | None:
        summed: dict[int, float] = {}
        for token, value in sampling.logit_bias:
            if not 0 <= token < self.vocab_size:
                raise ValueError(
                    f"logit_bias token {token} is outside the vocabulary of {self.vocab_size}"
                )
            summed[token] = summed.get(token, 0.0) + value
        if not summed:
            return None
        return TokenBias(
            np.fromiter(summed.keys(), np.int64), np.fromiter(summed.values(), np.float32)
        )

    def _set_min_tokens(self, row: int, sampling: SamplingParams) -> None:
        """Set min_tokens and the end tokens. Those outside the vocabulary cannot be sampled."""
        ends = set(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            ends.update(self.eos_token_ids)
        reachable = sorted(token for token in ends if 0 <= token < self.vocab_size)
        self.min_tokens[row] = sampling.min_tokens if reachable else 0
        self.end_tokens.pop(row, None)
        if self.min_tokens[row]:
            self.end_tokens[row] = np.array(reachable, dtype=np.int64)
