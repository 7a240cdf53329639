"""Text with tags, as for tool calls: what can be written and what cannot."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from muxcluster.constraints.grammars import Tag, tagged
from muxcluster.constraints.matching import Matching, TokenMasks
from muxcluster.constraints.rows import MaskModel
from muxcluster.constraints.vocabulary import Vocabulary, load_vocabulary
from muxcluster.core.sampling import Constraint
from tests.constraints.sampling import Sampler

CITY = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"],
        "additionalProperties": False}  # fmt: skip
HERMES = tuple(
    Tag(f'<tool_call>\n{{"name": "{name}", "arguments": ', schema, "}\n</tool_call>")
    for name, schema in (("weather", CITY), ("stop", {"type": "object", "maxProperties": 0}))
)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city":"Oslo"}}\n</tool_call>'
STOP = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'

Accepts = Callable[..., bool]


@pytest.fixture
def accepts(model: MaskModel, vocabulary: Vocabulary, matching: Matching) -> Accepts:
    """(text, tags, **options) -> can the text be written?"""
    sampler = Sampler(model.name, vocabulary)

    def ask(text: str, tags: Any = HERMES, **options: Any) -> bool:
        defaults = {"needs_one": True, "may_repeat": False, "text_before": False}
        constraint = Constraint(tagged(tags, **{**defaults, **options}))
        matching.prepare(model.name, constraint.grammar)
        return sampler.accepts(matching.masks, constraint, text, f"{text} {options}")

    return ask


def test_exactly_one_call(accepts: Accepts) -> None:
    assert accepts(CALL)
    assert accepts(STOP)
    for text in ("", "hello", CALL + CALL, CALL[:-1], "x" + CALL, CALL.replace("Oslo", "Bonn")):
        assert not accepts(text), text
    assert accepts("", needs_one=False)
    assert accepts(CALL, needs_one=False)
    assert not accepts("hello", needs_one=False)


def test_parallel_calls(accepts: Accepts) -> None:
    options = {"may_repeat": True, "separator": "\n"}
    assert accepts(CALL, **options)
    assert accepts("\n".join([CALL, STOP, CALL]), **options)
    for text in (CALL + STOP, CALL + "\n", "\n" + CALL, ""):
        assert not accepts(text, **options), text


def test_a_list_with_prefix_and_suffix(accepts: Accepts) -> None:
    tags = [Tag('{"name": "weather", "arguments": ', CITY, "}"), Tag('{"name": "any": ', None, "}")]
    one = '{"name": "weather", "arguments": {"city":"Rome"}}'
    options = {"may_repeat": True, "prefix": "CALLS [", "separator": ", ", "suffix": "]"}
    assert accepts(f"CALLS [{one}]", tags, **options)
    assert accepts(f'CALLS [{one}, {{"name": "any": [1,"x"]}}, {one}]', tags, **options)
    assert not accepts(f"CALLS [{one}", tags, **options)
    assert not accepts("CALLS []", tags, **options)
    # in free text
    options["text_before"] = True
    assert accepts(f"I look: CALLS [{one}, {one}] done", tags, **options)
    assert not accepts(f"I look: CALLS [{one}, x", tags, **options)
    assert not accepts("no call", tags, **options)
    assert accepts("no call", tags, **{**options, "needs_one": False})


@pytest.mark.parametrize("trigger", ["", "<tool_call>"])
def test_calls_in_free_text(accepts: Accepts, trigger: str) -> None:
    options = {"needs_one": False, "may_repeat": True, "text_before": True, "trigger": trigger}
    for text in ("", "hello <b>", CALL, f"Let me see. {CALL}", f"a {CALL}\n{STOP} b"):
        assert accepts(text, **options), text
    for text in (f"a {CALL.replace('Oslo', 'Bonn')}", CALL[:-3], f"{CALL} {STOP[:-2]}"):
        assert not accepts(text, **options), text
    unknown = CALL.replace("weather", "nonsense")
    # Without a trigger only what all tags have in common begins one: up to the name.
    assert not accepts(unknown, **options)
    once = {**options, "may_repeat": False}
    assert accepts(f"a {CALL} b", **once)
    assert not accepts(f"a {CALL} b {STOP}", **once)
    must = {**options, "needs_one": True}
    assert not accepts("hello", **must)
    assert accepts(f"hello {STOP}", **must)


def test_special_tokens_stand_for_their_text(model: MaskModel) -> None:
    """A tag's special token is that token, not its letters, and no free text has it."""
    vocabulary = load_vocabulary(replace(model, end_tokens=(model.vocab_size - 1,)))
    mark, end = vocabulary.specials["<s>"], vocabulary.specials["</s>"]
    matching = Matching({model.name: TokenMasks(vocabulary)})
    sampler = Sampler(model.name, vocabulary)
    tags = [Tag("<s>a ", CITY, "</s>"), Tag("<s>b ", {"const": 1}, "</s>")]
    free = Constraint(tagged(tags, needs_one=False, may_repeat=True, text_before=True))
    forced = Constraint(tagged(tags, needs_one=True, may_repeat=True, text_before=False))
    num_marks = 0
    for seed in range(20):
        for name, constraint in (("free", free), ("forced", forced)):
            tokens, is_complete = sampler.draw(matching.masks, constraint, seed, f"{name}{seed}")
            if not is_complete:
                continue
            assert tokens.count(mark) == tokens.count(end)
            if name == "forced":
                assert tokens[0] == mark
            num_marks += tokens.count(mark)
            at = 0
            for _ in range(tokens.count(mark)):
                first, last = tokens.index(mark, at), tokens.index(end, at)
                inside = sampler.text(tokens[first + 1 : last])
                value = json.loads(inside[2:])
                assert value == 1 if inside[0] == "b" else value["city"] in ("Oslo", "Rome")
                at = last + 1
    assert num_marks >= 20


def test_tags_that_contradict_themselves() -> None:
    with pytest.raises(ValueError):
        tagged([], needs_one=True, may_repeat=False, text_before=False)
    two = [Tag("a", None, ""), Tag("b", None, "")]
    with pytest.raises(ValueError):
        tagged(two, needs_one=True, may_repeat=False, text_before=True)
    with pytest.raises(ValueError):
        tagged(two[:1], needs_one=True, may_repeat=False, text_before=True, trigger="x")
