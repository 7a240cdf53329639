"""Structural tags: which texts their grammars take, and what is refused by its path."""

import json
import re

import pytest
from llguidance import LLMatcher, LLTokenizer

from muxcluster.constraints.matching import TokenMasks
from muxcluster.constraints.structural_tags import (
    MAX_DEPTH,
    MAX_FORMATS,
    structural_rules,
    structural_tag,
)
from muxcluster.constraints.vocabulary import load_vocabulary
from muxcluster.core.errors import RequestError

BYTES = LLTokenizer("byte")
NUMBER = {"type": "json_schema", "json_schema": {"type": "integer"}}
ANY = {"type": "any_text"}


def tag(begin, content, end):
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def text(value):
    return {"type": "const_string", "value": value}


def takes(value, output):
    """True if `output` is a whole output of the grammar."""
    structural_tag(value, "tag")
    rules = structural_rules(value, {})
    matcher = LLMatcher(BYTES, json.dumps({"grammars": [{"lark_grammar": rules}]}), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = BYTES.tokenize_bytes(output.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


CALLS = [tag("<f=a>", NUMBER, "</f>"), tag("<f=b>", text("x"), "</f>")]
# A regular expression of the same texts, for outputs of the parts below
ONE = r"(<f=a>-?\d+</f>|<f=b>x</f>)"
NO_TRIGGER = r"((?!<f=)(.|\n))*"
TRIGGERED = {"type": "triggered_tags", "triggers": ["<f="], "tags": CALLS}
SEPARATED = {"type": "tags_with_separator", "separator": ";", "tags": CALLS}
THINKING = tag("<think>", ANY, "</think>")
FORMATS = [
    (text("abc"), "abc"),
    (text('"\\/\n'), r'"\\/\n'),
    ({"type": "regex", "pattern": r"a/b\d|\\"}, r"a/b\d|\\"),
    (ANY, r"(.|\n)*"),
    ({"type": "sequence", "elements": [text("a"), NUMBER, text("!")]}, r"a-?\d+!"),
    ({"type": "or", "elements": [text("a"), text("bb"), NUMBER]}, r"a|bb|-?\d+"),
    (tag("<a>", NUMBER, ["</a>", "</b>"]), r"<a>-?\d+(</a>|</b>)"),
    (tag("<a>", ANY, "</a>"), r"<a>((?!</a>)(.|\n))*</a>"),
    (tag("<a>", ANY, ""), r"<a>(.|\n)*"),
    (
        {"type": "sequence", "elements": [THINKING, ANY]},
        r"<think>((?!</think>)(.|\n))*</think>(.|\n)*",
    ),
    (TRIGGERED, rf"({NO_TRIGGER}{ONE})*{NO_TRIGGER}"),
    (TRIGGERED | {"at_least_one": True}, rf"{ONE}({NO_TRIGGER}{ONE})*{NO_TRIGGER}"),
    (TRIGGERED | {"stop_after_first": True}, rf"{NO_TRIGGER}{ONE}?"),
    (TRIGGERED | {"at_least_one": True, "stop_after_first": True}, ONE),
    (TRIGGERED | {"triggers": ["<f=a", "<f=b"]}, rf"({NO_TRIGGER}{ONE})*((?!<f=[ab])(.|\n))*"),
    (SEPARATED, rf"({ONE}(;{ONE})*)?"),
    (SEPARATED | {"at_least_one": True}, rf"{ONE}(;{ONE})*"),
    (SEPARATED | {"stop_after_first": True}, rf"{ONE}?"),
    (SEPARATED | {"at_least_one": True, "stop_after_first": True}, ONE),
]
OUTPUTS = [
    "", "a", "abc", "bb", "7", "-12", "a7!", "a7", '"\\/\n', "a/b5", "\\", "<a>7</a>", "<a>7</b>",
    "<a>x</a>", "<a>x</a></a>", "<a></a>", "<a>", "<f=a>7</f>", "<f=b>x</f>", "<f=a>x</f>",
    "<f=c>", "hi <f=a>7</f>", "hi <f=a>7</f> and <f=b>x</f>.", "<f=a>7</f>bye", "<f=a>7",
    "<f=a>7</f>;<f=b>x</f>", "<f=a>7</f>;", "<f=a>7</f><f=b>x</f>", "<f", "<f=", "a < b\n<f",
    "<think>well\n</think>", "<think>well", "<think></think>yes </think>", "naïve 🦊",
]  # fmt: skip


@pytest.mark.parametrize(("wanted", "pattern"), FORMATS, ids=lambda value: str(value)[:60])
def test_a_format_takes_the_texts_that_it_describes(wanted, pattern):
    for output in OUTPUTS:
        expected = re.fullmatch(pattern, output) is not None
        assert takes({"format": wanted}, output) == expected, output


def test_the_older_form_is_triggered_tags():
    structures = [
        {"begin": f"<f={name}>", "schema": {"type": "integer"}, "end": "</f>"} for name in "ab"
    ]
    older = {"structures": structures, "triggers": ["<f="]}
    tags = [tag(f"<f={name}>", NUMBER, "</f>") for name in "ab"]
    newer = {"format": TRIGGERED | {"tags": tags}}
    assert structural_rules(older, {}) == structural_rules(newer, {})
    assert takes(older, "I call <f=a>7</f> and <f=b>8</f>.")
    assert not takes(older, "I call <f=a>seven</f>.")


def test_a_schema_may_refer_to_its_own_definitions():
    schema = {"$defs": {"n": {"type": "integer"}}, "type": "array", "items": {"$ref": "#/$defs/n"}}
    wanted = {"type": "json_schema", "json_schema": schema}
    both = {"format": {"type": "sequence", "elements": [text("x"), wanted]}}
    assert takes(both, "x[1,2]") and not takes(both, 'x["a"]')


INVALID, MISSING, UNSUPPORTED = (
    "invalid_value",
    "missing_required_parameter",
    "unsupported_parameter",
)
IN = "tag.format"


def nested(depth):
    return text("x") if depth == 0 else {"type": "or", "elements": [nested(depth - 1)]}


@pytest.mark.parametrize(
    ("value", "code", "param"),
    [
        ({}, INVALID, "tag"),
        ({"format": ANY, "triggers": ["x"]}, INVALID, "tag"),
        ({"type": "poem", "format": ANY}, INVALID, "tag.type"),
        ({"format": 5}, INVALID, IN),
        ({"format": {}}, MISSING, f"{IN}.type"),
        ({"format": {"type": "poem"}}, UNSUPPORTED, f"{IN}.type"),
        ({"format": {"type": "qwen_xml_parameter", "json_schema": {}}}, UNSUPPORTED, f"{IN}.type"),
        ({"format": NUMBER | {"style": "qwen_xml"}}, UNSUPPORTED, f"{IN}.style"),
        ({"format": {"type": "json_schema", "json_schema": False}}, INVALID, f"{IN}.json_schema"),
        ({"format": ANY | {"excludes": ["x"]}}, UNSUPPORTED, f"{IN}.excludes"),
        ({"format": {"type": "regex", "pattern": "a\\"}}, INVALID, f"{IN}.pattern"),
        ({"format": {"type": "sequence", "elements": []}}, INVALID, f"{IN}.elements"),
        ({"format": {"type": "sequence", "elements": [5]}}, INVALID, f"{IN}.elements[0]"),
        (
            {"format": {"type": "sequence", "elements": [ANY, text("x")]}},
            INVALID,
            f"{IN}.elements[0]",
        ),
        ({"format": tag("<a>", TRIGGERED, "</a>")}, INVALID, f"{IN}.content"),
        ({"format": {"type": "tag", "begin": "a", "end": "b"}}, MISSING, f"{IN}.content"),
        ({"format": TRIGGERED | {"triggers": ["<g"]}}, INVALID, f"{IN}.tags[0].begin"),
        ({"format": TRIGGERED | {"triggers": ["<f", "<f="]}}, INVALID, f"{IN}.tags[0].begin"),
        ({"format": TRIGGERED | {"triggers": [""]}}, INVALID, f"{IN}.tags[0].begin"),
        ({"format": TRIGGERED | {"triggers": [5]}}, INVALID, f"{IN}.triggers[0]"),
        ({"format": TRIGGERED | {"at_least_one": 1}}, INVALID, f"{IN}.at_least_one"),
        ({"format": {"type": "tags_with_separator", "tags": CALLS}}, MISSING, f"{IN}.separator"),
        (
            {"structures": [{"begin": "<", "end": ">"}], "triggers": ["<"]},
            MISSING,
            "tag.structures[0].schema",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_wrong_is_named_by_its_path(value, code, param):
    with pytest.raises(RequestError) as error:
        structural_tag(value, "tag")
    assert (error.value.code, error.value.param) == (code, param)


def test_formats_are_limited_in_depth_and_number():
    structural_tag({"format": nested(MAX_DEPTH - 1)}, "tag")
    with pytest.raises(RequestError, match="deep"):
        structural_tag({"format": nested(MAX_DEPTH)}, "tag")
    deep = json.loads('{"type":"or","elements":[' * 300 + "0" + "]}" * 300)
    with pytest.raises(RequestError, match="deep"):
        structural_tag({"format": deep}, "tag")
    many = {"type": "or", "elements": [text("x")] * MAX_FORMATS}
    with pytest.raises(RequestError, match="formats"):
        structural_tag({"format": many}, "tag")


SPECIAL = "<|user|>"
FREE_IN_SPECIAL = {"format": tag(SPECIAL, ANY, f"!{SPECIAL}")}
CALLED_BY_SPECIAL = {
    "structures": [{"begin": f"{SPECIAL}f:", "schema": {"type": "boolean"}, "end": SPECIAL}],
    "triggers": [SPECIAL],
}


@pytest.mark.parametrize(
    ("value", "pattern"),
    [
        (FREE_IN_SPECIAL, "S[^S]*!S"),
        (CALLED_BY_SPECIAL, "([^S]*Sf:(true|false)S)*[^S]*"),
        (
            {"format": TRIGGERED | {"tags": [tag("<f=", ANY, SPECIAL)]}},
            "(((?!<f=)[^S])*<f=[^S]*S)*((?!<f=)[^S])*",
        ),
    ],
    ids=["ends", "begins", "triggered"],
)
def test_special_tokens_stand_for_their_text(model_of, value, pattern):
    vocabulary = load_vocabulary(model_of("bytes"))
    special = vocabulary.specials[SPECIAL]
    masks = TokenMasks(vocabulary)
    byte_tokens = {text: token for token, text in enumerate(vocabulary.tokens) if len(text) == 1}
    outputs = ["S!S", "Shi!S", "Shi!!S", "ShiS", "hi", "hi!S", "S!Sx", "Sf:trueS", "xSf:falseSx"]
    outputs += [
        "Sf:true",
        "Sf:maybeS",
        "Sf:trueSSf:trueS",
        "a<f=bS<f=S.",
        "<f=b",
        "S",
        "",
        "<f",
        SPECIAL,
    ]
    for output in outputs:
        matcher = masks.compile(structural_tag(value, "tag"))
        tokens = [special if char == "S" else byte_tokens[char.encode()] for char in output]
        is_taken = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
        assert is_taken == (re.fullmatch(f"(?s){pattern}", output) is not None), output
