"""Truncation against Hugging Face's warpers, and its short cut against the whole sort."""

from itertools import product

import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from muxcluster.engine.sampling import truncation
from muxcluster.engine.sampling.truncation import thresholds


def survivors(scores, top_k, top_p, min_p):
    rows = len(scores)
    limits = (
        torch.full((rows,), top_k),
        torch.full((rows,), top_p, dtype=torch.float64),
        torch.full((rows,), min_p, dtype=torch.float64),
    )
    return scores >= thresholds(scores, *limits).unsqueeze(1)


def random_scores(rows, vocab_size, spread):
    generator = torch.Generator().manual_seed(vocab_size)
    logits = spread * torch.randn(rows, vocab_size, generator=generator)
    return logits - logits.amax(-1, keepdim=True)


@pytest.mark.parametrize("spread", [0.1, 3.0])
@pytest.mark.parametrize("vocab_size", [1, 5, 256, 1000, 1030])
def test_same_survivors_as_hugging_face(spread, vocab_size):
    scores = random_scores(6, vocab_size, spread)
    top_ks = [k for k in (1, 4, 255, 256, 300, 1000, 1029) if k <= vocab_size]
    for top_k, top_p, min_p in product(top_ks, [1e-6, 0.5, 0.95, 1.0], [0.0, 0.1, 0.9]):
        expected = hugging_face(scores, top_k, top_p, min_p)
        assert torch.equal(survivors(scores, top_k, top_p, min_p), expected), (top_k, top_p, min_p)


def hugging_face(scores, top_k, top_p, min_p):
    warpers = LogitsProcessorList([TopKLogitsWarper(top_k)])
    if min_p:
        warpers.insert(0, MinPLogitsWarper(min_p))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    return warpers(torch.zeros(6, 1, dtype=torch.long), scores.clone()).isfinite()


@pytest.mark.parametrize("num_candidates", [1, 3, 16])
def test_few_candidates_give_the_same_answer(monkeypatch, num_candidates):
    scores = random_scores(64, 60, 1.0)
    generator = torch.Generator().manual_seed(0)
    top_k = torch.randint(1, 61, (64,), generator=generator)
    top_k[::3] = 60
    top_p = torch.rand(64, generator=generator, dtype=torch.float64)
    top_p[::4] = 1.0
    min_p = torch.rand(64, generator=generator, dtype=torch.float64) * 0.3
    min_p[::2] = 0.0
    whole = thresholds(scores, top_k, top_p, min_p)
    monkeypatch.setattr(truncation, "NUM_CANDIDATES", num_candidates)
    kept = scores >= thresholds(scores, top_k, top_p, min_p).unsqueeze(1)
    assert torch.equal(kept, scores >= whole.unsqueeze(1))


def test_ties_with_the_last_survivor_survive():
    scores = torch.tensor([[0.0, -1.0, -1.0, -1.0, -5.0]])
    assert survivors(scores, 2, 1.0, 0.0).tolist() == [[True, True, True, True, False]]
    assert survivors(scores, 5, 0.6, 0.0).tolist() == [[True, True, True, True, False]]


def test_the_best_token_always_survives():
    scores = torch.tensor([[-0.5, 0.0, -torch.inf]])
    for top_k, top_p, min_p in [(1, 1.0, 0.0), (3, 1e-12, 0.0), (3, 1.0, 1.0)]:
        assert survivors(scores, top_k, top_p, min_p).tolist() == [[False, True, False]]
