"""Coalescing changes how output is cut into pieces, and nothing else."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muxcluster.cluster.ingress.coalesce import coalesce
from muxcluster.core.errors import EngineFailure
from muxcluster.http.calls.choice import ChoiceDelta

PIECES = st.lists(st.tuples(st.integers(0, 2), st.text(max_size=3), st.booleans()), max_size=30)


def _deltas(pieces: list[tuple[int, str, bool]]) -> list[tuple[ChoiceDelta, bool]]:
    return [
        (ChoiceDelta(index, text, (position,), num_output_tokens=position), pauses)
        for position, (index, text, pauses) in enumerate(pieces)
    ]


async def _source(deltas: list[tuple[ChoiceDelta, bool]]) -> AsyncGenerator[ChoiceDelta, None]:
    for delta, pauses in deltas:
        if pauses:
            await asyncio.sleep(0)
        yield delta


@given(PIECES)
@settings(max_examples=100, deadline=None)
def test_text_and_tokens_of_each_choice_are_the_same(pieces: list[tuple[int, str, bool]]) -> None:
    async def collect() -> list[ChoiceDelta]:
        return [item async for item in coalesce(_source(_deltas(pieces)), 0.0)]

    items = asyncio.run(collect())
    texts: dict[int, str] = defaultdict(str)
    tokens: dict[int, list[int]] = defaultdict(list)
    for item in items:
        texts[item.index] += item.text
        tokens[item.index] += item.tokens
    assert len(items) <= len(pieces)
    for index in range(3):
        mine = [(text, at) for at, (i, text, _) in enumerate(pieces) if i == index]
        assert texts[index] == "".join(text for text, _ in mine)
        assert tokens[index] == [at for _, at in mine]


def test_a_burst_becomes_one_item_with_the_last_state() -> None:
    deltas = [
        ChoiceDelta(0, "a", (1,), num_output_tokens=1),
        ChoiceDelta(0, "b", (2,), finish_reason="stop", num_output_tokens=2),
    ]

    async def collect() -> list[ChoiceDelta]:
        source = _source([(delta, False) for delta in deltas])
        return [item async for item in coalesce(source, 60.0)]

    assert asyncio.run(collect()) == [
        ChoiceDelta(0, "ab", (1, 2), finish_reason="stop", num_output_tokens=2)
    ]


def test_an_error_comes_after_what_was_before_it() -> None:
    async def failing() -> AsyncGenerator[ChoiceDelta, None]:
        yield ChoiceDelta(0, "a")
        await asyncio.sleep(0)
        raise EngineFailure("gone")

    async def collect() -> list[str]:
        seen = []
        with pytest.raises(EngineFailure, match="gone"):
            async for item in coalesce(failing(), 0.0):
                seen.append(item.text)
        return seen

    assert asyncio.run(collect()) == ["a"]


def test_closing_early_closes_the_source() -> None:
    closed = []

    async def endless() -> AsyncGenerator[ChoiceDelta, None]:
        try:
            while True:
                yield ChoiceDelta(0, "a")
                await asyncio.sleep(0)
        finally:
            closed.append(True)

    async def run() -> None:
        items = coalesce(endless(), 0.0)
        await anext(items)
        await items.aclose()

    asyncio.run(run())
    assert closed == [True]
