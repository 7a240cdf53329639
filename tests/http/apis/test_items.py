"""Items of outputs, whole and streamed, whatever they consist of and wherever they are cut."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from muxcluster.http.apis.items import (
    Begun,
    Ended,
    Grown,
    Item,
    ItemKind,
    ItemStream,
    whole_items,
)
from muxcluster.http.calls.choice import ChoiceDelta
from muxcluster.text.tools.parts import Arguments, CallBegun, CallBroken, Content, Part, Reasoning
from tests.amounts import examples

PIECES = st.lists(st.text(max_size=3), max_size=4)
Outputs = tuple[list[Part], list[Item], list[Item]]


def text_item(kind: ItemKind, pieces: list[str], items: list[Item]) -> None:
    """Add what a reader sees: texts of one kind after one another are one."""
    text = "".join(pieces)
    if text and items and items[-1].kind is kind:
        items[-1] = replace(items[-1], text=items[-1].text + text)
    elif text:
        items.append(Item(kind, text))


@st.composite
def outputs(draw: st.DrawFn) -> Outputs:
    """The parts of an output, its items if it is whole, and those of its stream.

    Of a broken call a stream has shown the arguments; a whole output has its text.
    """
    parts: list[Part] = []
    whole: list[Item] = []
    streamed: list[Item] = []
    for index in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(["text", "reasoning", "call", "broken"]))
        pieces = draw(PIECES)
        if kind == "text":
            parts += [Content(piece) for piece in pieces]
            text_item(ItemKind.TEXT, pieces, whole)
            text_item(ItemKind.TEXT, pieces, streamed)
        elif kind == "reasoning":
            parts += [Reasoning(piece) for piece in pieces]
            text_item(ItemKind.REASONING, pieces, whole)
            text_item(ItemKind.REASONING, pieces, streamed)
        else:
            parts.append(CallBegun(index, f"id{index}", "f"))
            parts += [Arguments(index, piece) for piece in pieces]
            call = Item(ItemKind.CALL, "".join(pieces), f"id{index}", "f")
            if kind == "call":
                whole.append(call)
            else:
                parts.append(CallBroken(index, f"<{index}>", False))
                text_item(ItemKind.TEXT, [f"<{index}>"], whole)
                call = replace(call, is_whole=False)
            streamed.append(call)
    return parts, whole, streamed


@settings(max_examples=examples(200, 2000), deadline=None)
@given(outputs(), st.data())
def test_items_of_any_output(output: Outputs, data: st.DataObject) -> None:
    parts, whole, streamed = output
    cuts = sorted(data.draw(st.lists(st.integers(0, len(parts)), max_size=4)))
    bounds = [0, *cuts, len(parts)]
    deltas = [
        ChoiceDelta(0, parts=tuple(parts[a:b])) for a, b in zip(bounds, bounds[1:], strict=False)
    ]
    deltas[-1] = replace(deltas[-1], finish_reason="stop")
    assert whole_items(deltas, keeps_cut_calls=True) == whole
    stream, seen = ItemStream(), []
    events = [event for part in parts for event in stream.push(part)]
    texts: list[str] = []
    for event in [*events, *stream.finish()]:
        match event:
            case Begun(index, item):
                assert index == len(seen) and item.text == ""
                texts = []
            case Grown(index, _, text):
                assert index == len(seen)
                texts.append(text)
            case Ended(index, item):
                assert index == len(seen)
                assert item.text == "".join(texts)
                seen.append(item)
    assert seen == streamed == stream.items
    assert list(stream.finish()) == []


def test_a_call_that_the_length_limit_cuts() -> None:
    parts: tuple[Part, ...] = (
        CallBegun(0, "x", "f"),
        Arguments(0, '{"a'),
        CallBroken(0, '<call>{"a', True),
    )
    cut = [ChoiceDelta(0, parts=parts, finish_reason="length")]
    assert whole_items(cut, keeps_cut_calls=True) == [
        Item(ItemKind.CALL, '{"a', "x", "f", is_whole=False)
    ]
    text = [Item(ItemKind.TEXT, '<call>{"a')]
    assert whole_items(cut, keeps_cut_calls=False) == text
    ended = [ChoiceDelta(0, parts=parts, finish_reason="stop")]
    assert whole_items(ended, keeps_cut_calls=True) == text


def test_an_output_without_parts_is_its_text() -> None:
    deltas = [ChoiceDelta(0, "a"), ChoiceDelta(0), ChoiceDelta(0, "b", finish_reason="stop")]
    assert whole_items(deltas, keeps_cut_calls=True) == [Item(ItemKind.TEXT, "ab")]
    assert whole_items(deltas[1:2], keeps_cut_calls=True) == []
