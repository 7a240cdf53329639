"""The path without HTTP: choices against an oracle on whole texts, merging, the Python way in."""

import asyncio
from contextlib import aclosing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muxcluster.core.errors import EngineFailure, InvalidValue, RequestTimeout
from muxcluster.core.events import Finished, FinishReason, TokenDelta
from muxcluster.http.app import create_app
from muxcluster.http.calls.call import RequestHead
from muxcluster.http.calls.choice import ChoiceText
from muxcluster.http.calls.merge import merge
from muxcluster.http.settings import ApiSettings
from muxcluster.text.schemas import CompletionBody
from muxcluster.text.validation.body import parse
from tests.amounts import examples
from tests.http.fakes import entry

LENGTH = Finished("r", FinishReason.LENGTH)


def service_of(backend, **options):
    return create_app(backend, ApiSettings(**options)).state.service


def prepared(service, **fields):
    body = parse(CompletionBody, {"model": "tiny", "prompt": "x", **fields})
    return asyncio.run(service.prepare(body, RequestHead("r")))


async def collected(stream):
    return [item async for item in stream]


def cut(text, stops):
    """Oracle: the text before the stop string that is complete first (longest wins)."""
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            return text[: end - len(max(done, key=len))], True
    return text, False


TEXTS = st.text(alphabet="ab é日🦊", min_size=1, max_size=20)
STOPS = st.lists(st.text(alphabet="ab é日🦊", min_size=1, max_size=4), max_size=3, unique=True)


@settings(
    max_examples=examples(60, 200),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(text=TEXTS, stops=STOPS, widths=st.lists(st.integers(1, 5), min_size=1), echo=st.booleans())
def test_any_cut_into_deltas_gives_the_oracles_text(backend, tokenizer, text, stops, widths, echo):
    service = service_of(backend)
    call = prepared(service, stop=stops, logprobs=0, echo=echo)
    tokens = tokenizer.encode(text, False)
    choice, shown, placed, last = ChoiceText(call, 0), "", [], None
    position, turn = 0, 0
    while not choice.finished:
        part = tokens[position : position + widths[turn % len(widths)]]
        position, turn = position + len(part), turn + 1
        finished = LENGTH if position >= len(tokens) else None
        values = tuple(entry(token, 0) for token in part)
        last = choice.advance(TokenDelta(tuple(part), values, (), finished))
        shown += last.text
        placed += last.logprobs
        assert all(item.offset <= len(shown) for item in placed)
    expected, is_cut = cut(text, stops)
    assert shown == ("x" if echo else "") + expected
    assert last.finish_reason == ("stop" if is_cut else "length")
    base = len(tokenizer.encode("x")) if echo else 0
    outputs = [item.token for item in placed[base:]]
    assert outputs == tokens[: len(outputs)]
    billed = last.num_output_tokens
    assert cut(tokenizer.decode(tokens[:billed]), stops)[1] == is_cut
    assert not cut(tokenizer.decode(tokens[: billed - 1]), stops)[1]
    if not is_cut:
        assert outputs == tokens


def test_min_tokens_holds_for_stop_strings(backend, tokenizer):
    tokens = tokenizer.encode("aaab", False)
    call = prepared(service_of(backend), stop="a", min_tokens=2)
    choice = ChoiceText(call, 0)
    text = "".join(choice.advance(TokenDelta((token,))).text for token in tokens[:3])
    assert len(text) > 0
    assert choice.finished


def test_python_way_in(backend, says):
    says("hello world")
    service = service_of(backend)
    fields = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "n": 2}
    deltas = asyncio.run(collected(service.generate(fields)))
    for index in (0, 1):
        mine = [delta for delta in deltas if delta.index == index]
        assert "".join(delta.text for delta in mine) == "hello world"
        assert [delta.finish_reason for delta in mine if delta.finish_reason] == ["stop"]
    with pytest.raises(InvalidValue):
        asyncio.run(collected(service.generate(fields | {"temperature": -1})))


def test_closing_the_stream_aborts_every_choice(backend, says):
    says("hello world again", ends=False)
    backend.most_deltas = 1
    service = service_of(backend)

    async def leave():
        async with aclosing(service.generate({"model": "tiny", "prompt": "x", "n": 4})) as deltas:
            await anext(deltas)
            return len(backend.requests)

    assert asyncio.run(leave()) == 4
    assert len(backend.aborted) == 4
    assert backend.ended == []


def test_one_failed_choice_ends_the_call_and_aborts_the_others(backend, says):
    tokens = says("hello world again")
    backend.most_deltas = 1

    def script(request):
        if request.request_id.endswith("-1"):
            raise EngineFailure("choice 1 is lost")
        return tokens

    backend.script = script
    stream = service_of(backend).generate({"model": "tiny", "prompt": "x", "n": 3})
    with pytest.raises(EngineFailure, match="choice 1"):
        asyncio.run(collected(stream))
    assert sorted(request_id[-1] for request_id in backend.aborted) == ["0", "1", "2"]


def test_stream_that_just_stops_is_a_failure(backend, served):
    backend.first = TokenDelta((65,))
    backend._deltas = lambda request: iter(())
    stream = service_of(backend).generate({"model": "tiny", "prompt": "x"})
    with pytest.raises(EngineFailure, match="before the request did"):
        asyncio.run(collected(stream))


def test_time_limit_in_the_middle_of_an_answer(backend, says):
    says("hello world", ends=False)
    backend.most_deltas = 1
    stream = service_of(backend, request_timeout_s=1.0).generate({"model": "tiny", "prompt": "x"})
    with pytest.raises(RequestTimeout):
        asyncio.run(collected(stream))
    assert len(backend.aborted) == 1


def test_merge_yields_everything_of_each_in_order():
    async def numbers(start):
        for i in range(3):
            await asyncio.sleep(0)
            yield start + i

    merged = asyncio.run(collected(merge([numbers(0), numbers(10), numbers(20)])))
    assert sorted(merged) == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    assert [item for item in merged if item < 10] == [0, 1, 2]
