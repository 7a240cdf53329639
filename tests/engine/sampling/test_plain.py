"""Sampling in one kernel draws what the sampler of the CPU draws, for the same seeds."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from muxcluster.core.sampling import SamplingParams
from muxcluster.engine.sampling.plain import draw, is_plain, limits, random_numbers
from muxcluster.engine.sampling.results import Readback
from tests.engine.sampling.sampling_cases import build_case

WAYS = (
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 2.0, "top_k": 5},
    {"temperature": 1.0, "top_p": 0.6},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 1.5, "top_k": 50, "top_p": 0.9, "min_p": 0.02},
)


@pytest.mark.parametrize("vocab_size", [1, 50, 3000])
def test_tokens_are_the_samplers(vocab_size: int) -> None:
    params = [SamplingParams(**WAYS[i % len(WAYS)], seed=i) for i in range(120)]
    case = build_case(params, vocab_size=vocab_size, seed=vocab_size)
    case.logits[5] = case.logits[5].round()  # ties
    table_rows = np.arange(120, dtype=np.int32)
    assert is_plain(case.state, table_rows, case.lengths)
    numbers = random_numbers(case.state, table_rows, case.lengths, 2, 128)
    rows = torch.cat((case.logits, torch.zeros(8, vocab_size)))
    outcome = torch.zeros(129, dtype=torch.int64)
    for step in range(2):
        drawing = [
            torch.from_numpy(a) for a in (*limits(case.state, table_rows, 128), numbers[step])
        ]
        draw(rows, drawing, None, outcome)
        expected = replace(case, lengths=case.lengths + step).sample()
        assert outcome[1:121].tolist() == expected.tokens.tolist()
        assert outcome[121:].tolist() == [0] * 8
    assert outcome[0] == 0


def test_broken_rows_are_marked_and_counted_among_the_live_ones() -> None:
    params = [SamplingParams(temperature=float(i % 2), seed=i) for i in range(8)]
    case = build_case(params, vocab_size=40)
    case.logits[1, 3] = torch.nan
    case.logits[2, 7] = torch.inf
    case.logits[4] = -torch.inf
    case.logits[6] = torch.nan
    table_rows = np.arange(8, dtype=np.int32)
    numbers = random_numbers(case.state, table_rows, case.lengths, 1, 8)[0]
    drawing = [torch.from_numpy(a) for a in (*limits(case.state, table_rows, 8), numbers)]
    live = torch.tensor([1, 1, 1, 1, 1, 1, 0, 1])
    outcome = torch.zeros(9, dtype=torch.int64)
    draw(case.logits, drawing, live, outcome)
    expected = case.sample()
    assert expected.broken_rows == (1, 2, 4, 6)
    assert outcome[1:].to(torch.int32).tolist() == expected.tokens.tolist()
    assert outcome[0] == 3
    readback = Readback(2, 6, outcome.device)
    readback.take(0, outcome)
    draw(build_case(params, vocab_size=40).logits, drawing, live, outcome)
    readback.take(1, outcome)
    result = readback.close({}).result()
    assert result.tokens[0].tolist() == expected.tokens[:6].tolist()
    assert np.flatnonzero(result.is_broken).tolist() == [1, 2, 4], "in any step, fillers aside"


@pytest.mark.parametrize(
    "more",
    [
        {"logprobs": 0},
        {"repetition_penalty": 1.1},
        {"frequency_penalty": 0.1},
        {"presence_penalty": -0.1},
        {"logit_bias": ((3, 1.0),)},
        {"min_tokens": 6},
    ],
)
def test_rows_that_ask_for_more_are_the_hosts(more: dict[str, object]) -> None:
    asking = SamplingParams(temperature=1.0, seed=1, **more)
    case = build_case([SamplingParams(seed=2), asking, SamplingParams(seed=3)])
    for table_rows, expected in (([0, 1], False), ([1], False), ([0, 2], True)):
        chosen = np.array(table_rows, dtype=np.int32)
        assert is_plain(case.state, chosen, case.lengths[chosen]) is expected


def test_end_tokens_that_were_held_back_need_the_host_no_longer() -> None:
    case = build_case([SamplingParams(min_tokens=5, seed=2)], num_output_tokens=5)
    table_rows = np.zeros(1, dtype=np.int32)
    assert is_plain(case.state, table_rows, case.lengths)
    assert not is_plain(case.state, table_rows, case.lengths - 1)


def test_a_rows_next_sequence_asks_for_itself() -> None:
    case = build_case([SamplingParams(logprobs=1, seed=2)])
    case.state.admit(0, SamplingParams(seed=2), 7)
    assert is_plain(case.state, np.zeros(1, dtype=np.int32), case.lengths)
