"""Grammars of requests: what they allow, and what is refused before anything is compiled."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from muxcluster.constraints import grammars
from muxcluster.constraints.matching import BadGrammar, Matching, TokenMasks
from muxcluster.constraints.rows import MaskModel
from muxcluster.constraints.vocabulary import Vocabulary
from muxcluster.core.errors import InvalidValue
from muxcluster.core.sampling import Constraint
from tests.constraints.sampling import Sampler

PATTERNS = (
    r"\d{3}-\d{4}", r"^[a-c]+$", r"(yes|no)?", r"a/b\/c", r"[^\d\s]{1,3}", r"x\.y|z", "l1\nl2\t",
    r"(?i)ok", r"é{2}", r"[\d.]+", r"\D", r"^$", r"\\", r"[/]", r"\/",
)  # fmt: skip
TEXTS = (
    "", "a", "abc", "yes", "no", "555-1234", "a/b/c", "x.y", "z", "l1\nl2\t", "OK", "oK", "éé",
    "1.5", "abcd", "٣٣٣-٣٣٣٣", "\\", "/", "/a", "x", "7",
)  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_regex_is_that_of_python(
    model: MaskModel, vocabulary: Vocabulary, matching: Matching, pattern: str
) -> None:
    sampler = Sampler(model.name, vocabulary)
    constraint = Constraint(grammars.regex(pattern, "p"))
    for text in TEXTS:
        wanted = re.fullmatch(pattern, text, re.ASCII) is not None
        found = sampler.accepts(matching.masks, constraint, text, f"{pattern} {text}")
        assert found == wanted, text


TEXT = st.text(st.characters(codec="utf-8"), max_size=8)


@example(options=["\x7f", "\x00", '"', "\\"], extra="\u2028")
@settings(max_examples=30)
@given(options=st.lists(TEXT.filter(bool), min_size=1, max_size=5), extra=TEXT)
def test_a_choice_is_one_of_its_texts(
    model: MaskModel, vocabulary: Vocabulary, masks: TokenMasks, options: list[str], extra: str
) -> None:
    sampler, matching = Sampler(model.name, vocabulary), Matching({model.name: masks})
    constraint = Constraint(grammars.choice(options, "p"))
    for text in (*options, extra, options[0] + extra):
        found = sampler.accepts(matching.masks, constraint, text, f"{options} {text}")
        assert found == (text in options), text


@pytest.mark.parametrize(
    "text",
    ['start: "a" B*\nB: /[0-9]+/', 'root ::= "a" digit*\ndigit ::= [0-9]', 'root ::= "a" [0-9]*'],
)
def test_both_notations_of_rules(
    model: MaskModel, vocabulary: Vocabulary, matching: Matching, text: str
) -> None:
    sampler = Sampler(model.name, vocabulary)
    constraint = Constraint(grammars.lark(text, "p"))
    for each, wanted in (("a", True), ("a17", True), ("", False), ("17", False), ("ab", False)):
        assert sampler.accepts(matching.masks, constraint, each, f"{text} {each}") == wanted


def test_whitespace_in_json_ends(
    model: MaskModel, vocabulary: Vocabulary, matching: Matching
) -> None:
    sampler = Sampler(model.name, vocabulary)
    constraint = Constraint(grammars.json_object())
    for count, wanted in ((0, True), (1, True), (64, True), (65, False)):
        text = "{" + " " * count + '"a":1}'
        assert sampler.accepts(matching.masks, constraint, text, f"{count}") == wanted
    for text in (' {"a":1}', '{"a":1}\n', "[1]", "1"):
        assert not sampler.accepts(matching.masks, constraint, text, text)


def test_any_json_value(model: MaskModel, vocabulary: Vocabulary, matching: Matching) -> None:
    sampler = Sampler(model.name, vocabulary)
    constraint = Constraint(grammars.json_schema(True, "p"))
    for text in ("1", '"a"', "[1, null]", '{"a": {"b": [true]}}', "-1.5e3"):
        assert sampler.accepts(matching.masks, constraint, text, text)
    for text in ("", "01", "{a:1}", "NaN", "'a'"):
        assert not sampler.accepts(matching.masks, constraint, text, text)


def test_a_contradiction_is_named_when_it_is_compiled(matching: Matching, model: MaskModel) -> None:
    schema = {"type": "object", "properties": {"a": False}, "required": ["a"]}
    with pytest.raises(BadGrammar, match="required property 'a'"):
        matching.prepare(model.name, grammars.json_schema(schema, "p"))
    for pattern in ("a\\b", "(?=a)", "[", r"(a)\1"):
        with pytest.raises(BadGrammar):
            matching.prepare(model.name, grammars.regex(pattern, "p"))


def test_what_is_refused_at_once() -> None:
    big = "x" * (grammars.MOST_BYTES + 1)
    for make in (
        lambda: grammars.regex("", "p"),
        lambda: grammars.regex(big, "p"),
        lambda: grammars.choice([], "p"),
        lambda: grammars.choice("ab", "p"),
        lambda: grammars.choice(["a", ""], "p"),
        lambda: grammars.choice(["a", 1], "p"),  # type: ignore[list-item]
        lambda: grammars.choice([big], "p"),
        lambda: grammars.lark(" \n", "p"),
        lambda: grammars.lark("no rules", "p"),
        lambda: grammars.lark(f"start: {big}", "p"),
        lambda: grammars.json_schema(False, "p"),
    ):
        with pytest.raises(InvalidValue) as caught:
            make()
        assert caught.value.param == "p"
        assert len(caught.value.message) < 300
