"""Penalties, bias and min_tokens as greedy rows show them, against Hugging Face and by hand."""

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from muxcluster.core.sampling import SamplingParams
from muxcluster.engine.sampling.batch import Batch
from muxcluster.engine.sampling.parameters import SequenceSampling
from muxcluster.engine.sampling.penalties import penalise_counts, penalise_repetition
from tests.engine.sampling.sampling_cases import EOS, build_case


def as_batch(case) -> Batch:
    return Batch(np.arange(len(case.lengths)), case.history, case.lengths, case.state)


@pytest.mark.parametrize("penalty", [0.5, 1.3, 10.0])
def test_repetition_as_hugging_face(penalty):
    params = [SamplingParams(repetition_penalty=penalty), SamplingParams()] * 3
    case = build_case(params)
    case.lengths[4] = 3
    edited = case.logits.clone()
    penalise_repetition(edited, as_batch(case), np.array([0, 2, 4]))
    for row, length in enumerate(case.lengths):
        expected = case.logits[row : row + 1].clone()
        if row % 2 == 0:
            processor = RepetitionPenaltyLogitsProcessor(penalty)
            expected = processor(case.history[row : row + 1, :length].long(), expected)
        torch.testing.assert_close(edited[row], expected[0], rtol=0, atol=0)


def test_frequency_and_presence_count_output_only():
    params = [
        SamplingParams(frequency_penalty=0.7),
        SamplingParams(presence_penalty=-0.4),
        SamplingParams(frequency_penalty=-1.5, presence_penalty=0.9),
    ]
    case = build_case(params, vocab_size=8, num_prompt_tokens=4, num_output_tokens=9)
    edited = case.logits.clone()
    penalise_counts(edited, as_batch(case), np.arange(3))
    for row, sampling in enumerate(params):
        output = case.history[row, 4:13].tolist()
        for token in range(8):
            count = output.count(token)
            drop = count * sampling.frequency_penalty + (count > 0) * sampling.presence_penalty
            assert edited[row, token].item() == pytest.approx(
                case.logits[row, token].item() - drop, abs=1e-5
            )


def test_penalties_steer_greedy_rows_and_leave_the_others():
    case = build_case([SamplingParams(temperature=0)] * 3, num_prompt_tokens=1)
    best = case.logits.argmax(-1)
    case.history[:, 3] = best
    case.state.admit(0, SamplingParams(temperature=0, presence_penalty=2.0), 1)
    case.state.admit(2, SamplingParams(temperature=0, repetition_penalty=1e30), 1)
    case.logits.scatter_(1, best[:, None], case.logits.topk(2).values[:, 1:] + 0.5)
    before = case.logits.clone()
    tokens = case.sample().tokens
    second = case.logits.topk(2).indices[:, 1]
    assert tokens[0] == second[0] and tokens[1] == best[1] and tokens[2] != best[2]
    assert torch.equal(case.logits, before)


def test_bias_forces_and_forbids():
    params = [
        SamplingParams(temperature=0, logit_bias=((17, 100.0),)),
        SamplingParams(temperature=1.0, logit_bias=((17, 100.0), (3, -100.0))),
        SamplingParams(temperature=0),
        SamplingParams(temperature=0, logit_bias=((5, 60.0), (6, 70.0), (5, 40.0))),
    ]
    case = build_case(params)
    best = int(case.logits[2].argmax())
    assert case.sample().tokens.tolist() == [17, 17, best, 5]
    case.state.admit(0, SamplingParams(temperature=0), 7)
    assert case.sample().tokens[0] == case.logits[0].argmax()


def test_bias_outside_the_vocabulary_is_refused_and_the_row_kept():
    state = SequenceSampling(2, 10, (EOS,))
    state.admit(1, SamplingParams(temperature=0.5), 3)
    for token in (-1, 10):
        with pytest.raises(ValueError, match="logit_bias"):
            state.admit(1, SamplingParams(logit_bias=((token, 1.0),)), 4)
    assert state.temperature[1] == 0.5 and state.num_prompt_tokens[1] == 3


def test_min_tokens_hold_back_end_tokens():
    def choice(sampling: SamplingParams, num_output_tokens: int) -> int:
        case = build_case([sampling], num_output_tokens=num_output_tokens)
        case.logits[0, [EOS, 9, 50]] = torch.tensor([30.0, 29.0, 28.0])
        return int(case.sample().tokens[0])

    held = SamplingParams(temperature=0, min_tokens=3, stop_token_ids=(9, 10**6))
    assert [choice(held, count) for count in range(5)] == [50, 50, 50, EOS, EOS]
    ignoring = SamplingParams(temperature=0, min_tokens=3, stop_token_ids=(9,), ignore_eos=True)
    assert choice(ignoring, 0) == EOS
    drawn = SamplingParams(temperature=1.0, min_tokens=3, stop_token_ids=(9,))
    assert choice(drawn, 1) == 50
    assert choice(SamplingParams(temperature=0, min_tokens=3, ignore_eos=True), 0) == EOS
