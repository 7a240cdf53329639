"""Logprobs are log_softmax of the raw logits."""

import numpy as np
import pytest
import torch

from muxcluster.core.sampling import SamplingParams
from muxcluster.engine.sampling import logprobs as module
from muxcluster.engine.sampling.sampler import prompt_logprobs
from tests.engine.sampling.sampling_cases import build_case


def check(entry, logits, token, num_top):
    expected = logits.double().log_softmax(-1)
    assert entry.token == token
    assert entry.logprob == pytest.approx(expected[token].item(), abs=1e-5)
    assert entry.rank == 1 + int((expected > expected[token]).sum())
    order = expected.argsort(descending=True)[:num_top]
    assert list(entry.top_tokens) == order.tolist()
    assert list(entry.top_logprobs) == pytest.approx(expected[order].tolist(), abs=1e-5)


def test_only_rows_that_asked_and_before_penalties():
    params = [
        SamplingParams(temperature=0, logprobs=0),
        SamplingParams(temperature=0),
        SamplingParams(temperature=0.3, logprobs=5, top_k=3, logit_bias=((4, 50.0),)),
        SamplingParams(temperature=0, logprobs=2, repetition_penalty=5.0),
    ]
    case = build_case(params)
    sampled = case.sample()
    assert sorted(sampled.logprobs) == [0, 2, 3]
    for row, entry in sampled.logprobs.items():
        check(entry, case.logits[row], sampled.tokens[row], params[row].logprobs)
    assert sampled.logprobs[0].rank == 1
    assert sampled.tokens[2] == 4


@pytest.mark.parametrize("num_top", [0, 1, 7, 40])
@pytest.mark.parametrize("chunk", [2, 64])
def test_prompt_logprobs(monkeypatch, num_top, chunk):
    monkeypatch.setattr(module, "_CHUNK_ROWS", chunk)
    logits = 4 * torch.randn(9, 30, generator=torch.Generator().manual_seed(0))
    targets = np.arange(9, dtype=np.int32) * 3
    entries = prompt_logprobs(logits, targets, num_top)
    assert len(entries) == 9
    for row, entry in enumerate(entries):
        check(entry, logits[row], int(targets[row]), min(num_top, 30))


def test_no_positions():
    assert prompt_logprobs(torch.empty(0, 30), np.empty(0, dtype=np.int32), 2) == ()


def test_ties_are_listed_lowest_id_first():
    logits = torch.tensor([[1.0, 5.0, 1.0, 5.0]])
    (entry,) = prompt_logprobs(logits, np.array([3], dtype=np.int32), 4)
    assert entry.rank == 1 and entry.top_tokens == (1, 3, 0, 2)
