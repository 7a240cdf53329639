"""Masks: end tokens, where a grammar begins, and that only the output tokens matter."""

import random
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from muxcluster.constraints import grammars
from muxcluster.constraints import matching as matching_module
from muxcluster.constraints.matching import Matching, TokenMasks
from muxcluster.constraints.rows import MaskModel, MaskRow
from muxcluster.constraints.vocabulary import Vocabulary, load_vocabulary
from muxcluster.core.sampling import Constraint
from tests.constraints.conftest import MORE_LOGITS
from tests.constraints.sampling import Sampler
from tests.constraints.schemas import Schemas


def allowed(matching: Matching, row: MaskRow) -> set[int]:
    masks = matching.masks([row])
    assert not masks.errors
    bits = np.unpackbits(masks.bits[0].view(np.uint8), bitorder="little")
    return {int(token) for token in np.flatnonzero(bits)}


def tokens_of(vocabulary: Vocabulary, text: str) -> NDArray[np.int32]:
    return np.array(vocabulary.encode(text), np.int32)


def test_end_tokens_come_together_and_only_at_an_end(model: MaskModel) -> None:
    ends = (0, *model.end_tokens, model.vocab_size - 1)
    vocabulary = load_vocabulary(replace(model, end_tokens=ends))
    matching = Matching({model.name: TokenMasks(vocabulary)})
    constraint = Constraint(grammars.regex("[0-9]{2,3}", "p"))
    for text, may_end, must_end in (
        ("", False, False),
        ("1", False, False),
        ("12", True, False),
        ("123", True, True),
    ):
        tokens = np.concatenate([np.empty(0, np.int32), *(tokens_of(vocabulary, c) for c in text)])
        row = MaskRow(model.name, f"{text}", constraint, tokens.astype(np.int32))
        found = allowed(matching, row)
        assert found & set(ends) == (set(ends) if may_end else set())
        assert bool(matching.masks([row]).must_end[0]) == must_end
        assert (found == set(ends)) == must_end
    # Sampled where it may end: nothing else comes after it.
    for end in ends:
        row = MaskRow(model.name, "end", constraint, np.array([*tokens, end], np.int32))
        assert allowed(matching, row) == set(ends)
        assert matching.masks([row]).must_end[0]


def test_a_model_without_end_tokens(model: MaskModel) -> None:
    vocabulary = load_vocabulary(replace(model, end_tokens=()))
    matching = Matching({model.name: TokenMasks(vocabulary)})
    constraint = Constraint(grammars.choice(["a"], "p"))
    start = MaskRow(model.name, "r", constraint, np.empty(0, np.int32))
    assert len(allowed(matching, start)) == 1
    masks = matching.masks([replace(start, tokens=tokens_of(vocabulary, "a"))])
    assert masks.must_end[0]
    assert not masks.bits[0].any()
    assert not masks.errors


def test_a_logit_without_a_token_is_never_allowed(
    model: MaskModel, vocabulary: Vocabulary, matching: Matching
) -> None:
    row = MaskRow(model.name, "r", Constraint(grammars.lark("start: /(?s:.*)/", "p")), EMPTY)
    found = allowed(matching, row)
    assert len(found) > 150
    assert max(found) < model.vocab_size - MORE_LOGITS
    # nor is a special token, of which nothing would be seen in the text
    assert not found & (set(vocabulary.specials.values()) - set(model.end_tokens))
    assert matching.masks([row]).bits[0].shape == (-(-model.vocab_size // 32),)


EMPTY = np.empty(0, np.int32)


def test_the_grammar_begins_after_a_run_of_tokens(
    model: MaskModel, vocabulary: Vocabulary, matching: Matching
) -> None:
    run = (40, 41, 40)
    constraint = Constraint(grammars.choice(["yes"], "p"), begins_after=run)
    text = set(range(model.vocab_size)) - set(model.end_tokens)
    before = [40, 41, 7, 41, 40, 41]
    for size in range(len(before) + 1):
        tokens = np.array(before[:size], np.int32)
        assert allowed(matching, MaskRow(model.name, "r", constraint, tokens)) == text
    after = np.array([*before, 40], np.int32)
    found = allowed(matching, MaskRow(model.name, "r", constraint, after))
    plain = replace(constraint, begins_after=())
    assert found == allowed(matching, MaskRow(model.name, "p", plain, EMPTY))
    # all at once, and with tokens after it that look like it
    yes = tokens_of(vocabulary, "yes")
    masks = matching.masks(
        [MaskRow(model.name, "all", constraint, np.concatenate([after, yes]).astype(np.int32))]
    )
    assert masks.must_end[0]


def test_a_mask_is_a_function_of_the_tokens(
    model: MaskModel, vocabulary: Vocabulary, masks: TokenMasks
) -> None:
    """Whatever was asked before: other tokens of the row, fewer, the same, or nothing."""
    chance = random.Random(1)
    sampler = Sampler(model.name, vocabulary)
    for seed in range(12):
        constraint = Constraint(grammars.json_schema(Schemas(seed + 50).draw(), "schema"))
        kept = Matching({model.name: masks})
        if kept.masks([MaskRow(model.name, "r", constraint, EMPTY)]).errors:
            continue
        outputs = [sampler.draw(kept.masks, constraint, at, f"{at}")[0][:60] for at in range(3)]
        for _ in range(40):
            output = chance.choice(outputs)
            tokens = np.array(output[: chance.randrange(len(output) + 1)], np.int32)
            row = MaskRow(model.name, "r", constraint, tokens)
            found, fresh = kept.masks([row]), Matching({model.name: masks}).masks([row])
            assert np.array_equal(found.bits, fresh.bits)
            assert np.array_equal(found.must_end, fresh.must_end)


def test_a_token_that_does_not_match_is_an_error_of_its_row(
    model: MaskModel, vocabulary: Vocabulary, matching: Matching
) -> None:
    constraint = Constraint(grammars.choice(["yes", "no"], "p"))
    rows = [
        MaskRow(model.name, name, constraint, tokens_of(vocabulary, text))
        for name, text in (("a", "yes"), ("b", "x"), ("c", "yesno"), ("d", "no"))
    ]
    found = matching.masks([*rows, MaskRow("other", "e", constraint, EMPTY)])
    assert sorted(found.errors) == [1, 2, 4]
    assert found.must_end.tolist() == [True, False, False, True, False]
    assert not any(found.bits[row].any() for row in (1, 2, 4))
    assert "output token 0" in found.errors[1]
    # the same again, from what is kept
    assert matching.masks(rows).errors == {at: found.errors[at] for at in (1, 2)}


def test_a_request_id_that_comes_again_has_its_new_grammar(
    model: MaskModel, matching: Matching
) -> None:
    for option in ("a", "b"):
        constraint = Constraint(grammars.choice([option], "p"))
        found = allowed(matching, MaskRow(model.name, "r", constraint, EMPTY))
        other = allowed(matching, MaskRow(model.name, option, constraint, EMPTY))
        assert found == other
    assert matching.num_matchers == 3


def test_matchers_are_dropped(
    model: MaskModel, matching: Matching, monkeypatch: pytest.MonkeyPatch
) -> None:
    constraint = Constraint(grammars.json_object())

    def ask(name: str) -> None:
        matching.masks([MaskRow(model.name, name, constraint, EMPTY)])

    monkeypatch.setattr(matching_module, "MOST_MATCHERS", 5)
    for number in range(20):
        ask(f"{number}")
    assert matching.num_matchers == 5
    monkeypatch.setattr(matching_module, "IDLE_S", 0.0)
    ask("last")
    assert matching.num_matchers <= 1


def test_forced_text_is_written_in_the_tokens_of_the_model(
    model: MaskModel, vocabulary: Vocabulary, matching: Matching
) -> None:
    """Also where a tokenizer puts a space before a text, and for the text of a special token."""
    for text in ("ab ab.", "  a", "naïve 你好 🙂", "</s>", "<s>x", "a\nb\t"):
        constraint = Constraint(grammars.choice([text], "p"))
        sampler = Sampler(model.name, vocabulary)
        tokens, is_complete = sampler.draw(matching.masks, constraint, 0, text)
        assert is_complete
        assert sampler.text(tokens) == text
        if "s>" not in text:
            assert tokens == vocabulary.encode(text)


def test_a_run_is_what_masks_allow_one_by_one(
    model: MaskModel, vocabulary: Vocabulary, masks: TokenMasks
) -> None:
    sampler = Sampler(model.name, vocabulary)
    num_runs = num_long = 0
    for seed in range(12):
        constraint = Constraint(grammars.json_schema(Schemas(seed + 90).draw(), "schema"))
        plain, joined = Matching({model.name: masks}), Matching({model.name: masks})
        if plain.masks([MaskRow(model.name, "r", constraint, EMPTY)]).errors:
            continue
        output, _ = sampler.draw(plain.masks, constraint, seed, "drawn")
        at = 0
        while at <= len(output):
            row = MaskRow(model.name, "r", constraint, np.array(output[:at], np.int32), joins=True)
            found, wanted = joined.masks([row]), plain.masks([replace(row, joins=False)])
            assert np.array_equal(found.bits, wanted.bits)
            assert np.array_equal(found.must_end, wanted.must_end)
            assert not wanted.runs
            run = found.runs.get(0, ())
            assert run[: len(output) - at] == tuple(output[at : at + len(run)])
            for place, token in enumerate(run):
                before = np.array([*output[:at], *run[:place]], np.int32)
                assert allowed(plain, replace(row, tokens=before, joins=False)) == {token}
            after = allowed(plain, replace(row, tokens=np.array([*output[:at], *run], np.int32)))
            ends = set(vocabulary.end_tokens)
            assert len(run) in (0, matching_module.MOST_RUN) or len(after) > 1 or after == ends
            num_runs += len(run) > 1
            num_long += len(run) == matching_module.MOST_RUN
            at += max(1, len(run))
    assert num_runs > 10
    assert num_long > 0


def test_tokens_of_a_run_may_be_asked_for_one_by_one(
    model: MaskModel, vocabulary: Vocabulary, masks: TokenMasks
) -> None:
    """As a row does that goes on elsewhere, or again."""
    text = '"name and value": 1'
    constraint = Constraint(grammars.choice([text, "other"], "p"))
    output = vocabulary.encode(text)
    matching, fresh = Matching({model.name: masks}), Matching({model.name: masks})
    asked = [*range(len(output) + 1), *reversed(range(len(output) + 1))]
    for at in asked:
        row = MaskRow(model.name, "r", constraint, np.array(output[:at], np.int32), joins=True)
        wanted = fresh.masks([replace(row, request_id=f"{at}", joins=False)])
        found = matching.masks([row])
        assert not found.errors
        assert np.array_equal(found.bits, wanted.bits)
