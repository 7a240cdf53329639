"""Sampling cases for twin and Triton kernel, and what a float64 sort makes of them."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

CLOSE = 1e-6
"""Running sums of weights, as shares, that are nearer than this may fall either way."""


@dataclass(frozen=True, slots=True)
class Case:
    """Arguments of `sample`, rows first."""

    logits: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    uniform: Tensor

    def arguments(self) -> tuple[Tensor, ...]:
        return (
            self.logits,
            self.temperature,
            self.top_k,
            self.top_p,
            self.min_p,
            self.uniform,
        )


def random_case(rows: int, vocab: int, seed: int, *, ties: bool = False) -> Case:
    """Rows of every mixture of limits; `ties`: logits take few values."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, rng.uniform(0.1, 6, (rows, 1)), (rows, vocab))
    if ties:
        logits = np.round(logits)
    top_k = np.where(rng.random(rows) < 0.5, vocab, rng.integers(1, min(vocab, 60) + 1, rows))
    top_p = np.where(rng.random(rows) < 0.4, 1.0, rng.random(rows))
    min_p = np.where(rng.random(rows) < 0.7, 0.0, rng.random(rows) * 0.3)
    temperature = np.where(rng.random(rows) < 0.1, 0.0, rng.uniform(0.3, 2.0, rows))
    return Case(
        torch.from_numpy(logits.astype(np.float32)),
        torch.from_numpy(temperature),
        torch.from_numpy(top_k),
        torch.from_numpy(top_p),
        torch.from_numpy(min_p),
        torch.from_numpy(rng.random(rows)),
    )


def one_row(logits: list[float], **limits: float) -> Case:
    """One row of `logits`; limits by name, the others cut nothing."""
    vocab = len(logits)
    given = {"temperature": 1.0, "top_k": vocab, "top_p": 1.0, "min_p": 0.0, "uniform": 0.5}
    given.update(limits)
    values = {
        name: torch.tensor([number], dtype=torch.int64 if name == "top_k" else torch.float64)
        for name, number in given.items()
    }
    return Case(torch.tensor([logits], dtype=torch.float32), **values)


def count_excused(case: Case, tokens: Tensor) -> int:
    """Rows whose token is another than the sorted reference's while two sums nearly tie there.

    Fails where a token differs without that excuse.
    """
    excused = 0
    for row, token in enumerate(tokens.tolist()):
        limits = [float(each[row]) for each in case.arguments()[1:]]
        expected, margin = _reference(case.logits[row].numpy(), limits)
        if token != expected:
            assert margin < CLOSE, f"row {row}: {token}, sorted {expected}, margin {margin:g}"
            excused += 1
    return excused


def _reference(logits: np.ndarray, limits: list[float]) -> tuple[int, float]:
    """The token that sorting gives, and how near the nearest sum was that could change it."""
    temperature, top_k, top_p, min_p, uniform = limits
    if temperature == 0:
        return int(np.flatnonzero(logits == logits.max())[0]), np.inf
    # Ties are of the fp32 score; everything after it is float64.
    scores = (logits - logits.max()) / np.float32(temperature)
    weights = np.exp(scores.astype(np.float64))
    order = np.argsort(-scores, kind="stable")
    lowest = scores[order[int(top_k) - 1]]
    if min_p > 0:
        lowest = max(lowest, np.float32(np.log(min_p)))
    margin = np.inf
    if top_p < 1:
        left = order[scores[order] >= lowest]
        sums = np.cumsum(weights[left]) / weights[left].sum()
        margin = float(np.abs(sums - top_p).min())
        last = min(int(np.sum(sums < top_p)), len(left) - 1)
        lowest = max(lowest, scores[left[last]])
    sums = np.cumsum(np.where(scores >= lowest, weights, 0.0))
    sums /= sums[-1]
    margin = min(margin, float(np.abs(sums - uniform).min()))
    return int(np.argmax(sums > uniform)), margin
