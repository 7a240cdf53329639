"""Sampling under constraints, against a draw over the allowed tokens alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from muxcluster.core.sampling import Constraint, SamplingParams
from muxcluster.engine.sampling.constrained import (
    LEAST_VOCAB,
    MOST_FEW,
    Allowed,
    AllowedTokens,
    KnownMasks,
)
from muxcluster.engine.sampling.sampler import sample
from tests.engine.sampling.sampling_cases import EOS, build_case

VOCAB = 100
ANY = Constraint("{}")


def bits_of(mask: np.ndarray) -> np.ndarray:
    """Bool [rows, vocab] as words, by hand."""
    words = np.zeros((len(mask), -(-mask.shape[1] // 32)), dtype=np.uint32)
    for row, token in zip(*np.nonzero(mask), strict=True):
        words[row, token // 32] |= np.uint32(1) << np.uint32(token % 32)
    return words


def allowed_of(rows: list[int], mask: np.ndarray, must_end: list[bool] | None = None) -> Allowed:
    ends = np.array(must_end or [False] * len(rows))
    tokens = [AllowedTokens(bits, mask.shape[1]) for bits in bits_of(mask)]
    return Allowed(np.array(rows), tokens, ends, {})


@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0, 1000))
def test_tokens_are_those_of_a_draw_with_all_others_impossible(
    data: st.DataObject, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    num_rows = data.draw(st.integers(1, 6))
    vocab = data.draw(st.sampled_from([VOCAB, LEAST_VOCAB + 45]))
    rows = data.draw(st.lists(st.integers(0, num_rows - 1), min_size=1, unique=True).map(sorted))
    params = [
        SamplingParams(
            temperature=data.draw(st.sampled_from([0.0, 0.7, 2.0])),
            top_k=data.draw(st.sampled_from([None, 1, 5, MOST_FEW + 9])),
            top_p=data.draw(st.sampled_from([1.0, 0.5])),
            repetition_penalty=data.draw(st.sampled_from([1.0, 3.0])),
            seed=row,
        )
        for row in range(num_rows)
    ]
    case = build_case(params, vocab_size=vocab, seed=seed)
    shares = data.draw(
        st.lists(st.sampled_from([0.0, 0.02, 0.3, 1.0]), min_size=len(rows), max_size=len(rows))
    )
    mask = rng.random((len(rows), vocab)) < np.array(shares)[:, None]
    mask[np.arange(len(rows)), rng.integers(0, vocab, len(rows))] = True
    table_rows = np.arange(num_rows, dtype=np.int32)
    before = case.logits.clone()
    got = sample(
        case.logits, table_rows, case.history, case.lengths, case.state, allowed_of(rows, mask)
    ).tokens
    assert torch.equal(case.logits, before)
    changed = case.logits.clone()
    for place, row in enumerate(rows):
        changed[row, torch.from_numpy(~mask[place])] = -torch.inf
    case.logits = changed
    assert got.tolist() == case.sample().tokens.tolist()
    assert all(mask[place, got[row]] for place, row in enumerate(rows))


def test_a_token_is_allowed_even_where_the_model_allows_none() -> None:
    """The logits of all allowed tokens are -inf: the lowest of them."""
    case = build_case([SamplingParams(temperature=1.0)] * 2, vocab_size=VOCAB)
    mask = np.zeros((1, VOCAB), dtype=bool)
    mask[0, [40, 60]] = True
    case.logits[1, [40, 60]] = -torch.inf
    found = sample(
        case.logits,
        np.arange(2, dtype=np.int32),
        case.history,
        case.lengths,
        case.state,
        allowed_of([1], mask),
    )
    assert found.tokens[1] == 40


@pytest.mark.parametrize(("must_end", "ends"), [(False, False), (True, True)])
def test_min_tokens_yield_only_to_a_text_that_is_over(must_end: bool, ends: bool) -> None:
    case = build_case([SamplingParams(temperature=0.0, min_tokens=50)], vocab_size=VOCAB)
    mask = np.zeros((1, VOCAB), dtype=bool)
    mask[0, [EOS] if must_end else [EOS, 70]] = True
    case.logits[0, EOS] = 99.0
    found = sample(
        case.logits,
        np.zeros(1, dtype=np.int32),
        case.history,
        case.lengths,
        case.state,
        allowed_of([0], mask, [must_end]),
    )
    assert bool(found.tokens[0] == EOS) is ends


def test_errors_are_told_by_row() -> None:
    case = build_case([SamplingParams(constraint=ANY)] * 2, vocab_size=VOCAB)
    everything = KnownMasks(VOCAB).every
    allowed = Allowed(np.array([1]), [everything], np.zeros(1, dtype=bool), {1: "too much"})
    found = sample(
        case.logits,
        np.arange(2, dtype=np.int32),
        case.history,
        case.lengths,
        case.state,
        allowed,
    )
    assert found.refused_rows == {1: "too much"}


@pytest.mark.parametrize("num_allowed", [0, 1, 2, MOST_FEW, MOST_FEW + 1, LEAST_VOCAB])
def test_the_forms_of_a_mask_say_the_same(num_allowed: int) -> None:
    vocab = LEAST_VOCAB + 45
    mask = np.zeros(vocab, dtype=bool)
    mask[np.random.default_rng(num_allowed).permutation(vocab)[:num_allowed]] = True
    allowed = AllowedTokens(bits_of(mask[None])[0], vocab)
    assert torch.equal(allowed.bounds, torch.where(torch.from_numpy(mask), torch.inf, -torch.inf))
    assert [token in allowed for token in range(vocab)] == mask.tolist()
    assert allowed.first == (int(mask.argmax()) if num_allowed else None)
    if num_allowed > MOST_FEW:
        assert allowed.few is None
    else:
        assert allowed.few is not None
        assert allowed.few.tolist() == np.flatnonzero(mask).tolist()


def test_a_token_does_not_depend_on_the_masks_of_other_rows() -> None:
    """Rows of few tokens are drawn together, and beside rows of many."""
    vocab, num_rows = LEAST_VOCAB, 6
    rng = np.random.default_rng(5)
    params = [SamplingParams(seed=row, top_p=0.9, top_k=40) for row in range(num_rows)]
    case = build_case(params, vocab_size=vocab)
    mask = rng.random((num_rows, vocab)) < np.array([[0.001], [0.01], [0.1], [0.9], [0.0], [0.1]])
    mask[4, 77] = True
    table_rows = np.arange(num_rows, dtype=np.int32)

    def tokens(rows: list[int]) -> list[int]:
        return sample(
            case.logits[rows],
            table_rows[rows],
            case.history,
            case.lengths[rows],
            case.state,
            allowed_of(list(range(len(rows))), mask[rows]),
        ).tokens.tolist()

    together = tokens(list(range(num_rows)))
    assert together[4] == 77
    assert together == [tokens([row])[0] for row in range(num_rows)]


def test_a_known_mask_is_the_array_that_it_was_made_of() -> None:
    """Whatever memory later arrays get: one that is gone is not taken for a new one."""
    known = KnownMasks(VOCAB)
    for number in range(200):
        token = number % VOCAB
        mask = np.zeros((1, VOCAB), dtype=bool)
        mask[0, [token, 0]] = True
        bits = bits_of(mask)[0]
        found = known.of(bits)
        assert known.of(bits) is found
        assert token in found
        assert token == 0 or token not in known.of(bits, (token,))
