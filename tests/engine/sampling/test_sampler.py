"""The sampler as a whole: greedy, distribution, independence of the batch, broken logits."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from muxcluster.core.sampling import SamplingParams
from muxcluster.engine.sampling.parameters import SequenceSampling
from muxcluster.engine.sampling.sampler import sample
from tests.engine.sampling.sampling_cases import build_case, many_draws

VOCAB = 40


def test_greedy_is_argmax_and_the_lowest_id_on_ties():
    case = build_case([SamplingParams(temperature=0)] * 5)
    case.logits[3, [70, 20, 90]] = 50.0
    expected = case.logits.argmax(-1)
    expected[3] = 20
    sampled = case.sample()
    assert sampled.tokens.dtype == np.int32
    assert sampled.tokens.tolist() == expected.tolist()
    assert not sampled.logprobs and not sampled.broken_rows


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(),
        SamplingParams(temperature=0.6),
        SamplingParams(temperature=2.0, top_k=7),
        SamplingParams(top_p=0.8),
        SamplingParams(min_p=0.05),
        SamplingParams(temperature=1.5, top_k=20, top_p=0.9, min_p=0.02),
    ],
)
@pytest.mark.parametrize("seed", [3, -5])
def test_frequencies_follow_hugging_face_distribution(sampling, seed):
    logits = 1.5 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(1))
    warpers = LogitsProcessorList([TemperatureLogitsWarper(sampling.temperature)])
    if sampling.min_p:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    expected = warpers(torch.zeros(1, 1, dtype=torch.long), logits[None].clone())[0]
    expected = expected.double().softmax(-1).numpy()
    draws = many_draws(logits, replace(sampling, seed=seed), 20_000)
    counts = np.bincount(draws, minlength=VOCAB)
    possible = expected > 0
    assert counts[~possible].sum() == 0
    assert stats.chisquare(counts[possible], expected[possible] * len(draws)).pvalue > 1e-3


def test_first_tokens_of_many_seeds_follow_the_distribution():
    logits = 1.5 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(2))
    state = SequenceSampling(5000, VOCAB, ())
    for row in range(5000):
        state.admit(row, SamplingParams(seed=row), 1)
    history = torch.zeros(5000, 1, dtype=torch.int32)
    table_rows = np.arange(5000, dtype=np.int32)
    tokens = sample(
        logits.expand(5000, -1), table_rows, history, np.ones(5000, dtype=np.int32), state
    ).tokens
    expected = logits.double().softmax(-1).numpy() * 5000
    assert stats.chisquare(np.bincount(tokens, minlength=VOCAB), expected).pvalue > 1e-3


def test_a_tiny_temperature_is_greedy():
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(3))
    for temperature in (1e-6, 1e-40, 1e-300):
        tokens = many_draws(logits, SamplingParams(temperature=temperature), 50)
        assert (tokens == int(logits.argmax())).all()


def test_a_resumed_request_draws_the_same_tokens():
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(4))
    sampling = SamplingParams(seed=11, top_p=0.9)
    whole = many_draws(logits, sampling, 60)
    assert many_draws(logits, sampling, 20, first=40).tolist() == whole[40:].tolist()
    other = many_draws(logits, SamplingParams(seed=12, top_p=0.9), 60)
    assert other.tolist() != whole.tolist()


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([None, 1, 5, 60]),
    top_p=st.sampled_from([1.0, 0.9, 0.2]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.4]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    presence_penalty=st.sampled_from([0.0, -0.5]),
    logit_bias=st.sampled_from([(), ((3, 2.0),), ((3, -2.0), (8, 4.0))]),
    seed=st.integers(-(2**63), 2**63 - 1),
    min_tokens=st.sampled_from([0, 3, 9]),
    logprobs=st.sampled_from([None, 0, 3]),
)


@settings(max_examples=60, deadline=None)
@given(params=st.lists(PARAMS, min_size=1, max_size=6), data=st.data())
def test_a_row_does_not_depend_on_its_batch(params, data):
    case = build_case(params, seed=len(params))
    whole = case.sample()
    order = data.draw(st.permutations(range(len(params))))
    part = order[: data.draw(st.integers(1, len(params)))]
    sampled = case.sample(part)
    assert sampled.tokens.tolist() == whole.tokens[part].tolist()
    assert sampled.logprobs == {
        row: whole.logprobs[source] for row, source in enumerate(part) if source in whole.logprobs
    }


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_rows_are_reported_and_harm_no_other(temperature):
    params = [SamplingParams(temperature=temperature, seed=row, logprobs=1) for row in range(6)]
    case = build_case(params)
    clean = case.sample()
    case.logits[1, 5] = torch.nan
    case.logits[2] = torch.nan
    case.logits[3, 7] = torch.inf
    case.logits[4] = -torch.inf
    sampled = case.sample()
    assert sampled.broken_rows == (1, 2, 3, 4)
    assert sampled.tokens[[0, 5]].tolist() == clean.tokens[[0, 5]].tolist()
    assert sampled.logprobs[0] == clean.logprobs[0] and sampled.logprobs[5] == clean.logprobs[5]
    assert sampled.tokens[1] != 5
    assert sampled.tokens[3] == 7
    assert ((sampled.tokens >= 0) & (sampled.tokens < 100)).all()
    assert np.isfinite([entry.logprob for entry in sampled.logprobs.values()]).all()


def test_no_rows():
    case = build_case([SamplingParams()])
    assert case.sample([]).tokens.shape == (0,)


def test_wrong_shapes_are_refused():
    case = build_case([SamplingParams()] * 2)
    table_rows = np.arange(2, dtype=np.int32)
    for logits, lengths in [
        (case.logits[:1], case.lengths),
        (case.logits[:, :99], case.lengths),
        (case.logits.double(), case.lengths),
        (case.logits, case.lengths[:1]),
    ]:
        with pytest.raises(ValueError, match="logits must be"):
            sample(logits, table_rows, case.history, lengths, case.state)
