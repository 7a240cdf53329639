"""The real openai client over a real server."""

import http.client
import json

import httpx
import openai
import pytest

from muxcluster.core.errors import EngineFailure, NotReady
from muxcluster.core.events import Finished, FinishReason, Rejected, TokenDelta
from tests.http.fakes import logprob_of, wait_until

USER = [{"role": "user", "content": "Say hello"}]


def test_lists_and_retrieves_models(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").max_model_len == 256
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("org/other")
    assert error.value.code == "model_not_found"


def test_chat_whole(client, says, backend):
    tokens = says("hello world")
    answer = client.chat.completions.create(model="tiny", messages=USER, seed=5, temperature=0)
    assert answer.object == "chat.completion"
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content) == ("assistant", "hello world")
    assert choice.finish_reason == "stop"
    request = backend.requests[0]
    assert answer.usage.prompt_tokens == len(request.prompt_tokens)
    assert answer.usage.completion_tokens == len(tokens) + 1  # the end token is billed
    assert answer.usage.prompt_tokens_details.cached_tokens == 3
    assert request.sampling.seed == 5
    assert request.sampling.temperature == 0
    assert request.sampling.max_tokens == 256 - len(request.prompt_tokens)


def test_chat_prompt_is_the_rendered_template(client, says, backend, tokenizer):
    says("ok")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]
    client.chat.completions.create(model="tiny", messages=messages)
    text = tokenizer.decode(backend.requests[0].prompt_tokens.tolist())
    assert text == "<|system|>be brief\n<|user|>a\nb\n<|assistant|>"


def test_chat_stream_order(client, says):
    says("hello world")
    options = {"include_usage": True}
    stream = client.chat.completions.create(
        model="tiny", messages=USER, stream=True, stream_options=options
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:-1])
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == "hello world"
    reasons = [chunk.choices[0].finish_reason for chunk in chunks[:-1]]
    assert reasons[-1] == "stop"
    assert set(reasons[:-1]) == {None}
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens > 0
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


def test_continuous_usage(client, says):
    says("hello world", ends=False)
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = client.completions.create(
        model="tiny", prompt="x", stream=True, stream_options=options
    )
    counts = [chunk.usage.completion_tokens for chunk in stream]
    assert counts == sorted(counts)
    assert counts[0] == 1


def test_n_choices_have_their_own_seeds(client, says, backend):
    says("hi")
    answer = client.chat.completions.create(model="tiny", messages=USER, n=3, seed=11)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    seeds = [request.sampling.seed for request in backend.requests]
    assert len(set(seeds)) == 3
    assert 11 in seeds
    assert len({request.request_id for request in backend.requests}) == 3
    assert answer.usage.prompt_tokens == len(backend.requests[0].prompt_tokens)
    again = backend.requests.copy()
    client.chat.completions.create(model="tiny", messages=USER, n=3, seed=11)
    repeated = {request.sampling.seed for request in backend.requests[len(again) :]}
    assert repeated == set(seeds)


def test_streamed_choices_interleave_and_each_finish_once(client, says, backend):
    says("hello world again")
    backend.delay_s = 0.001
    ends, texts = {}, {}
    for chunk in client.completions.create(model="tiny", prompt="x", n=2, stream=True):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            if choice.finish_reason:
                assert choice.index not in ends
                ends[choice.index] = choice.finish_reason
    assert texts == {0: "hello world again", 1: "hello world again"}
    assert ends == {0: "stop", 1: "stop"}


@pytest.mark.parametrize("width", [1, 3, 50])
def test_stop_string_split_over_tokens(client, says, backend, width):
    tokens = says("hello world again" + " and again" * 5)
    backend.width = width
    answer = client.completions.create(model="tiny", prompt="x", max_tokens=90, stop=["rld ag"])
    assert answer.choices[0].text == "hello wo"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].stop_reason == "rld ag"
    assert answer.usage.completion_tokens < len(tokens)
    assert backend.aborted == [backend.requests[0].request_id] or width == 50


def test_stream_never_shows_a_stop_strings_beginning(client, says):
    says("hello world again")
    stream = client.completions.create(
        model="tiny", prompt="x", max_tokens=40, stop="rld again", stream=True
    )
    shown = ""
    for chunk in stream:
        shown += chunk.choices[0].text
        assert "hello wo".startswith(shown)
    assert shown == "hello wo"


def test_stop_string_in_output_on_request(client, says):
    says("hello world again")
    extra = {"include_stop_str_in_output": True}
    answer = client.completions.create(
        model="tiny", prompt="x", max_tokens=40, stop="world", extra_body=extra
    )
    assert answer.choices[0].text == "hello world"


def test_characters_are_never_split(client, says):
    says("naïve 🦊 日本")
    stream = client.completions.create(model="tiny", prompt="x", max_tokens=99, stream=True)
    pieces = [chunk.choices[0].text for chunk in stream]
    assert "".join(pieces) == "naïve 🦊 日本"
    assert not any("\ufffd" in piece for piece in pieces)


def test_chat_logprobs(client, says):
    tokens = says("hello world")
    answer = client.chat.completions.create(
        model="tiny", messages=USER, logprobs=True, top_logprobs=2, max_tokens=len(tokens)
    )
    content = answer.choices[0].logprobs.content
    assert "".join(item.token for item in content) == "hello world"
    assert [item.logprob for item in content] == [logprob_of(token) for token in tokens]
    assert all(len(item.top_logprobs) == 2 for item in content)
    assert bytes(byte for item in content for byte in item.bytes) == b"hello world"
    assert answer.choices[0].finish_reason == "length"


def test_streamed_logprobs_equal_whole_ones(client, says):
    says("hello 🦊 world")
    ask = {"model": "tiny", "prompt": "x", "max_tokens": 50, "logprobs": 1}
    whole = client.completions.create(**ask).choices[0].logprobs
    streamed = [
        chunk.choices[0].logprobs for chunk in client.completions.create(**ask, stream=True)
    ]
    for field in ("tokens", "token_logprobs", "text_offset"):
        parts = [getattr(item, field) for item in streamed if item is not None]
        assert [value for part in parts for value in part] == getattr(whole, field)


def test_echo_with_logprobs_as_lm_eval_asks(client, says, backend, tokenizer):
    says("hello", ends=False)
    prompt = tokenizer.encode("Many models share", True)
    answer = client.completions.create(
        model="tiny", prompt=[prompt], max_tokens=1, echo=True, logprobs=1, temperature=0
    )
    choice = answer.choices[0]
    logprobs = choice.logprobs
    assert choice.text.startswith("Many models share")
    assert len(logprobs.tokens) == len(prompt) + 1
    assert logprobs.token_logprobs[0] is None
    assert logprobs.token_logprobs[1:-1] == [logprob_of(token) for token in prompt[1:]]
    assert logprobs.top_logprobs[0] is None
    for token, tops in zip(logprobs.tokens[1:], logprobs.top_logprobs[1:], strict=True):
        assert token == max(tops, key=tops.get)
    for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
        assert choice.text[offset:].startswith(token)
    assert backend.requests[0].cacheable is False
    assert answer.usage.completion_tokens == 1


def test_echo_alone_asks_no_engine(client, backend):
    answer = client.completions.create(model="tiny", prompt="hello", max_tokens=0, echo=True)
    assert answer.choices[0].text == "hello"
    assert answer.usage.completion_tokens == 0
    assert backend.requests == []


def test_echo_of_prompt_logprobs_without_output(client, says, backend, tokenizer):
    says("world", ends=False)
    answer = client.completions.create(
        model="tiny", prompt="hello", max_tokens=0, echo=True, logprobs=0
    )
    assert answer.choices[0].text == "hello"
    assert len(answer.choices[0].logprobs.tokens) == len(tokenizer.encode("hello"))
    assert answer.usage.completion_tokens == 0
    assert backend.requests[0].sampling.max_tokens == 1


def test_prompt_lists(client, says, backend, tokenizer):
    says("ok")
    ids = tokenizer.encode("hello", False)
    for prompt in (["a", "b"], [ids, ids]):
        answer = client.completions.create(model="tiny", prompt=prompt, n=2, seed=1)
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert client.completions.create(model="tiny", prompt=ids).choices[0].text == "ok"
    assert backend.requests[-1].prompt_tokens.tolist() == ids
    seeds = [request.sampling.seed for request in backend.requests[:4]]
    assert len(set(seeds)) == 2  # a prompt in a list gets what it would get alone


def test_stop_token_id_is_not_shown(client, says, tokenizer):
    says("hello world")
    extra = {"stop_token_ids": tokenizer.encode(" world", False)[:1]}
    answer = client.completions.create(model="tiny", prompt="x", extra_body=extra)
    assert answer.choices[0].text == "hello"
    assert answer.choices[0].stop_reason == extra["stop_token_ids"][0]


def test_leaving_a_stream_aborts(client, says, backend):
    says("hello world " * 9, ends=False)
    backend.most_deltas = 1
    stream = client.completions.create(model="tiny", prompt="x", max_tokens=100, n=2, stream=True)
    next(iter(stream))
    stream.response.close()
    assert wait_until(lambda: len(backend.aborted) == 2)
    assert backend.ended == []


def test_leaving_before_the_answer_aborts(client, says, backend):
    says("hello world " * 9, ends=False)
    backend.most_deltas = 0
    connection = http.client.HTTPConnection(client.base_url.host, client.base_url.port)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {client.api_key}"}
    connection.request("POST", "/v1/completions", b'{"model": "tiny", "prompt": "x"}', headers)
    assert wait_until(lambda: len(backend.requests) == 1)
    connection.close()
    assert wait_until(lambda: len(backend.aborted) == 1)


def test_error_before_the_first_token_is_an_http_error(client, backend):
    backend.error, backend.script = EngineFailure("unit is gone"), lambda request: [1, 2, 3]
    with pytest.raises(openai.InternalServerError) as error:
        client.completions.create(model="tiny", prompt="x", stream=True)
    assert error.value.code == "internal_error"
    backend.error = NotReady("loading", retry_after_s=7)
    with pytest.raises(openai.InternalServerError) as error:
        client.completions.create(model="tiny", prompt="x", stream=True)
    assert error.value.status_code == 503
    assert error.value.response.headers["retry-after"] == "7"


def test_error_after_the_first_token_raises_in_the_client(client, says, backend):
    says("hello world again")
    backend.error, backend.error_after = EngineFailure("unit is gone"), 2
    stream = client.chat.completions.create(model="tiny", messages=USER, stream=True)
    with pytest.raises(openai.APIError, match="unit is gone"):
        list(stream)


@pytest.mark.parametrize("is_stream", [False, True])
def test_logits_that_are_not_finite_are_an_error(client, backend, is_stream):
    message = "tiny computed NaN or infinite logits for this request"
    code = "non_finite_logits"
    end = Finished("r", FinishReason.ERROR, message=message, code=code)
    backend.first = TokenDelta(finished=end)
    with pytest.raises(openai.InternalServerError, match="NaN or infinite") as error:
        client.completions.create(model="tiny", prompt="x", stream=is_stream)
    assert (error.value.status_code, error.value.code) == (500, code)
    assert error.value.response.headers["x-should-retry"] == "false"


def test_broken_stream_has_no_clean_end(client, says, backend):
    says("hello world again")
    backend.error, backend.error_after = EngineFailure("unit is gone"), 2
    body = {"model": "tiny", "prompt": "x", "stream": True}
    received = b""
    with (
        pytest.raises(httpx.RemoteProtocolError),
        httpx.stream("POST", f"{client.base_url}completions", json=body) as response,
    ):
        for part in response.iter_raw():
            received += part
    events = received.decode().split("\n\n")
    assert json.loads(events[-2].removeprefix("data: "))["error"]["code"] == "internal_error"
    assert "[DONE]" not in received.decode()


def test_rejected_by_the_unit(client, backend):
    backend.first = TokenDelta(rejected=Rejected("r", "rate_limit_exceeded", "queue full"))
    with pytest.raises(openai.RateLimitError) as error:
        client.completions.create(model="tiny", prompt="x")
    assert int(error.value.response.headers["retry-after"]) >= 1


def test_request_id_is_echoed(client, says):
    says("ok")
    answer = client.chat.completions.create(
        model="tiny", messages=USER, extra_headers={"X-Request-Id": "abc-1"}
    )
    assert answer._request_id == "abc-1"
    assert answer.id == "chatcmpl-abc-1"
