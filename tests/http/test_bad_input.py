"""Bad input gets OpenAI's error JSON naming the field, and the engine stays untouched."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from muxcluster.http.app import create_app
from muxcluster.http.settings import ApiSettings
from muxcluster.text.tokenizer import Tokenizer
from tests.amounts import examples
from tests.http.fakes import served_model

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "tiny", "prompt": "hi"}
UNSUPPORTED = "unsupported_parameter"
AS_JSON = {"Content-Type": "application/json"}


def post(http, body, path="/v1/completions"):
    content = body if isinstance(body, bytes) else json.dumps(body)
    return http.post(path, content=content, headers=AS_JSON)


def assert_refused(answer, backend, status, code, param):
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param)
    assert error["message"]
    assert backend.requests == []


COMMON = [
    ({"temperature": -1}, "invalid_value", "temperature"),
    ({"temperature": 2.5}, "invalid_value", "temperature"),
    ({"temperature": float("nan")}, "invalid_value", "temperature"),
    ({"temperature": float("inf")}, "invalid_value", "temperature"),
    ({"temperature": "hot"}, "invalid_value", "temperature"),
    ({"temperature": True}, "invalid_value", "temperature"),
    ({"top_p": 0}, "invalid_value", "top_p"),
    ({"top_p": 1.5}, "invalid_value", "top_p"),
    ({"top_k": -2}, "invalid_value", "top_k"),
    ({"min_p": 2}, "invalid_value", "min_p"),
    ({"presence_penalty": 3}, "invalid_value", "presence_penalty"),
    ({"repetition_penalty": 0}, "invalid_value", "repetition_penalty"),
    ({"max_tokens": -1}, "invalid_value", "max_tokens"),
    ({"max_tokens": 0}, "invalid_value", "max_tokens"),
    ({"max_tokens": 1.5}, "invalid_value", "max_tokens"),
    ({"max_tokens": 10**6}, "context_length_exceeded", "max_tokens"),
    ({"max_tokens": 2, "min_tokens": 3}, "invalid_value", "min_tokens"),
    ({"n": 0}, "invalid_value", "n"),
    ({"n": 129}, "invalid_value", "n"),
    ({"seed": 2**63}, "invalid_value", "seed"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "invalid_value", "stop"),
    ({"stop": ["a", ""]}, "invalid_value", "stop[1]"),
    ({"stop": 5}, "invalid_value", "stop"),
    ({"stop_token_ids": [9999]}, "invalid_value", "stop_token_ids"),
    ({"logit_bias": {"9999": 1}}, "invalid_value", "logit_bias"),
    ({"logit_bias": {"x": 1}}, "invalid_value", "logit_bias"),
    ({"logit_bias": {"1": 101}}, "invalid_value", "logit_bias.1"),
    ({"logit_bias": {"1": float("nan")}}, "invalid_value", "logit_bias.1"),
    ({"stream": "yes"}, "invalid_value", "stream"),
    ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
    ({"stream": True, "stream_options": {"x": 1}}, UNSUPPORTED, "stream_options.x"),
    ({"service_tier": "gold"}, "invalid_value", "service_tier"),
    ({"slo": {"ttft": -1}}, "invalid_value", "slo.ttft"),
    ({"slo": {"ttft": 1}}, "invalid_value", "slo"),
    ({"cache_salt": "x" * 129}, "invalid_value", "cache_salt"),
    ({"request_id": "two words"}, "invalid_value", "request_id"),
    ({"no_such_field": 1}, UNSUPPORTED, "no_such_field"),
    ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
    ({"structured_outputs": {}}, "invalid_value", "structured_outputs"),
    ({"guided_json": {"type": 5}}, "invalid_value", "guided_json"),
    ({"guided_decoding_backend": "outlines"}, UNSUPPORTED, "guided_decoding_backend"),
    ({"use_beam_search": True}, UNSUPPORTED, "use_beam_search"),
    ({"bad_words": ["x"]}, UNSUPPORTED, "bad_words"),
    ({"truncate_prompt_tokens": 0}, "invalid_value", "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": -2}, "invalid_value", "truncate_prompt_tokens"),
    ({"modalities": ["audio"]}, UNSUPPORTED, "modalities"),
    ({"store": True}, UNSUPPORTED, "store"),
    ({"best_of": 2}, UNSUPPORTED, "best_of"),
]


@pytest.mark.parametrize(("fields", "code", "param"), COMMON, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_fields_of_both_routes(http, backend, path, fields, code, param):
    base = CHAT if "chat" in path else TEXT
    assert_refused(post(http, base | fields, path), backend, 400, code, param)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"prompt": None}, "invalid_value", "prompt"),
        ({"prompt": ""}, "invalid_value", "prompt"),
        ({"prompt": []}, "invalid_value", "prompt"),
        ({"prompt": [[]]}, "invalid_value", "prompt"),
        ({"prompt": 5}, "invalid_value", "prompt"),
        ({"prompt": [1, "a"]}, "invalid_value", "prompt"),
        ({"prompt": ["a", 1]}, "invalid_value", "prompt[1]"),
        ({"prompt": [True]}, "invalid_value", "prompt[0]"),
        ({"prompt": [-1]}, "invalid_value", "prompt"),
        ({"prompt": [10**9]}, "invalid_value", "prompt"),
        ({"prompt": [2**70]}, "invalid_value", "prompt"),
        ({"prompt": [1] * 256}, "context_length_exceeded", "prompt"),
        ({"prompt": [1] * 250, "max_tokens": 7}, "context_length_exceeded", "max_tokens"),
        ({"logprobs": 21}, "invalid_value", "logprobs"),
        ({"logprobs": True}, "invalid_value", "logprobs"),
        ({"suffix": "end"}, UNSUPPORTED, "suffix"),
        ({"tools": [{"type": "function"}]}, UNSUPPORTED, "tools"),
        ({"reasoning_effort": "high"}, UNSUPPORTED, "reasoning_effort"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_completion_fields(http, backend, fields, code, param):
    assert_refused(post(http, TEXT | fields), backend, 400, code, param)


def user(content):
    return [{"role": "user", "content": content}]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": "hi"}, "invalid_value", "messages"),
        ({"messages": ["hi"]}, "invalid_value", "messages[0]"),
        ({"messages": [{"content": "hi"}]}, "missing_required_parameter", "messages[0].role"),
        ({"messages": [{"role": "pope", "content": "x"}]}, "invalid_value", "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "invalid_value", "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
        ({"messages": user([])}, "invalid_value", "messages[0].content"),
        ({"messages": user([{"type": "image_url"}])}, UNSUPPORTED, "messages[0].content[0].type"),
        ({"messages": user([{"type": "text"}])}, "invalid_value", "messages[0].content[0].text"),
        ({"messages": user("x" * 2000)}, "context_length_exceeded", "messages"),
        ({"logprobs": 3}, "invalid_value", "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "invalid_value", "top_logprobs"),
        ({"top_logprobs": 2}, "invalid_value", "top_logprobs"),
        ({"max_completion_tokens": 0}, "invalid_value", "max_completion_tokens"),
        ({"max_completion_tokens": 5, "max_tokens": 6}, "invalid_value", "max_tokens"),
        ({"reasoning_effort": "high"}, UNSUPPORTED, "reasoning_effort"),
        ({"chat_template": "{{ 1 }}"}, UNSUPPORTED, "chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "invalid_value", "chat_template_kwargs"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_chat_fields(http, backend, fields, code, param):
    answer = post(http, CHAT | fields, "/v1/chat/completions")
    assert_refused(answer, backend, 400, code, param)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"model": "tiny",}',
        b"\xff",
        b"[" * 100_000,
        b'{"model": "tiny", "prompt": "\\ud800"}',
        b'{"model": "tiny", "prompt": "\xed\xa0\x80"}',
        '{"model": "tiny", "prompt": "\\ud800"}'.encode("utf-16"),
    ],
    ids=["empty", "cut", "comma", "not utf-8", "deep", "surrogate", "raw surrogate", "utf-16"],
)
def test_malformed_json(http, backend, body):
    assert_refused(post(http, body), backend, 400, "invalid_json", None)


def test_body_that_is_no_object(http, backend):
    assert_refused(post(http, b"[]"), backend, 400, "invalid_value", None)


@pytest.mark.parametrize("missing", ["model", "prompt"])
def test_missing_field(http, backend, missing):
    body = {name: value for name, value in TEXT.items() if name != missing}
    assert_refused(post(http, body), backend, 400, "missing_required_parameter", missing)


def test_unknown_model(http, backend):
    answer = post(http, TEXT | {"model": "other"})
    assert_refused(answer, backend, 404, "model_not_found", "model")


@pytest.mark.parametrize("declared", [True, False])
def test_body_over_the_limit(backend, declared):
    body = json.dumps(TEXT | {"prompt": "x" * 2000}).encode()
    content = body if declared else iter([body[:900], body[900:]])
    with TestClient(create_app(backend, ApiSettings(max_body_bytes=1000))) as http:
        answer = http.post("/v1/completions", content=content, headers=AS_JSON)
    assert_refused(answer, backend, 413, "content_too_large", None)


def test_unknown_route_and_method(http, backend):
    assert_refused(http.get("/v1/nothing"), backend, 404, "not_found", None)
    answer = http.get("/v1/completions")
    assert_refused(answer, backend, 405, "method_not_allowed", None)
    assert "POST" in answer.headers["allow"]


def test_harmless_fields_pass(http, backend, says):
    says("ok")
    harmless = {
        "user": "me",
        "metadata": {"a": "b"},
        "store": False,
        "tools": [],
        "tool_choice": "none",
        "parallel_tool_calls": True,
        "response_format": {"type": "text"},
        "guided_json": None,
        "safety_identifier": "x",
        "prompt_cache_key": "k",
        "best_of": 1,
        "logit_bias": None,
        "stop": None,
        "service_tier": "auto",
    }
    assert post(http, CHAT | harmless, "/v1/chat/completions").status_code == 200
    assert len(backend.requests) == 1


def test_lenient_drops_unknown_fields_but_none_with_an_effect(backend, says):
    says("ok")
    with TestClient(create_app(backend, ApiSettings(lenient=True))) as http:
        assert post(http, TEXT | {"no_such_field": 1}).status_code == 200
        refused = post(http, TEXT | {"bad_words": ["x"]})
    assert refused.json()["error"]["code"] == UNSUPPORTED


def test_bad_time_limit(http, backend):
    headers = {"X-Request-Timeout-Seconds": "soon"}
    answer = http.post("/v1/completions", json=TEXT, headers=headers)
    assert_refused(answer, backend, 400, "invalid_value", "x-request-timeout-seconds")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["model", "prompt", "messages", "n", "stop", "logit_bias", "slo", "stream_options", "seed"]
    + ["tools", "tool_choice", "parallel_tool_calls", "reasoning_effort"]
)


@settings(
    max_examples=examples(50, 150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(fields=st.dictionaries(FIELDS, JSON), chat=st.booleans())
def test_no_body_breaks_the_server(http, fields, chat):
    base, path = (CHAT, "/v1/chat/completions") if chat else (TEXT, "/v1/completions")
    answer = post(http, base | {"max_tokens": 1} | fields, path)
    assert answer.status_code in (200, 400, 404)
    if answer.status_code != 200:
        assert isinstance(answer.json()["error"]["code"], str)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"prompt": "x" * 30_000}, "/v1/completions"),
        ({"messages": user("x" * 30_000)}, "/v1/chat/completions"),
    ],
    ids=["completion", "chat"],
)
def test_hopeless_prompt_is_refused_untokenised(http, backend, monkeypatch, fields, path):
    def encode(*args):
        raise AssertionError("tokenised")

    monkeypatch.setattr(Tokenizer, "encode", encode)
    (param,) = fields
    base = CHAT if "chat" in path else TEXT
    answer = post(http, base | fields, path)
    assert_refused(answer, backend, 400, "context_length_exceeded", param)


def test_model_may_be_left_out_of_tokenize_only_where_there_is_one(model_dir, backend):
    backend.served.append(served_model(model_dir, name="other"))
    with TestClient(create_app(backend, ApiSettings())) as http:
        answer = http.post("/tokenize", json={"prompt": "x"})
    assert_refused(answer, backend, 400, "missing_required_parameter", "model")


ROUTES = ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "kind",
    [
        None,
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "text/json",
        "application/jsonp",
        "application/octet-stream",
        "text/plain; a=application/json",
    ],
)
def test_a_body_that_does_not_say_json_is_415(http, backend, path, kind):
    headers = {} if kind is None else {"Content-Type": kind}
    answer = http.post(path, content=json.dumps(TEXT | CHAT), headers=headers)
    assert_refused(answer, backend, 415, "unsupported_media_type", None)


@pytest.mark.parametrize(
    "kind",
    [
        "application/json; charset=utf-8",
        "Application/JSON ;charset=UTF-8",
        "application/vnd.api+json",
        "application/json;",
    ],
)
def test_kinds_of_json(http, says, kind):
    says("ok")
    headers = {"Content-Type": kind}
    body = json.dumps(TEXT)
    assert http.post("/v1/completions", content=body, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{"X": "a" * 70_000}, {f"X-{i}": "1" for i in range(128)}],
    ids=["size", "number"],
)
def test_heads_are_limited_behind_another_server_too(http, headers):
    """Serve's proxy has no limits of its own."""
    answer = http.get("/health", headers=headers)
    assert answer.status_code == 431
    assert answer.json()["error"]["code"] == "request_head_too_large"


LONG = "a\n\x1b[31m" * 150_000
LONG_NUMBER = int("9" * 4000)
CHAT_OF = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", TEXT | {"model": LONG}),
        ("/v1/chat/completions", CHAT_OF | {"model": LONG}),
        ("/tokenize", {"model": LONG, "prompt": "x"}),
        ("/v1/completions", TEXT | {LONG: 1}),
        ("/v1/completions", TEXT | {"stream": True, "stream_options": {LONG: 1}}),
        ("/v1/completions", TEXT | {"slo": {LONG: 1}}),
        ("/v1/completions", TEXT | {"logit_bias": {LONG: 1000}}),
        ("/v1/completions", TEXT | {"logit_bias": {LONG: 1}}),
        ("/v1/completions", TEXT | {"service_tier": LONG}),
        ("/v1/completions", TEXT | {"request_id": LONG}),
        ("/v1/completions", TEXT | {"cache_salt": LONG}),
        ("/v1/completions", TEXT | {"prompt": [LONG_NUMBER]}),
        ("/v1/completions", TEXT | {"seed": LONG_NUMBER}),
        ("/v1/completions", TEXT | {"max_tokens": LONG_NUMBER}),
        ("/v1/completions", TEXT | {"temperature": LONG}),
        ("/v1/chat/completions", CHAT_OF | {"messages": [{"role": LONG, "content": "x"}]}),
        (
            "/v1/chat/completions",
            CHAT_OF | {"messages": [{"role": "user", "content": [{"type": LONG}]}]},
        ),
        ("/v1/chat/completions", CHAT_OF | {"messages": LONG}),
        ("/v1/chat/completions", CHAT_OF | {"chat_template_kwargs": LONG}),
        ("/v1/completions", TEXT | {"guided_json": {"properties": {LONG[:99_999]: {"type": 5}}}}),
        ("/v1/completions", TEXT | {"guided_json": {"$ref": LONG[:99_999]}}),
        ("/v1/completions", TEXT | {"guided_json": LONG}),
        ("/v1/completions", TEXT | {"guided_choice": [LONG, ""]}),
        ("/v1/completions", TEXT | {"guided_grammar": LONG[:99_999]}),
        ("/v1/completions", TEXT | {"structured_outputs": {LONG: 1}}),
        ("/v1/completions", TEXT | {"response_format": {"type": LONG}}),
        ("/v1/completions", TEXT | {"structural_tag": {"format": {"type": LONG[:99_999]}}}),
        (
            "/v1/completions",
            TEXT | {"structural_tag": {"format": {"type": "any_text", LONG[:99_999]: 1}}},
        ),
    ],
    ids=range(28),
)
def test_an_error_does_not_echo_what_was_sent_whole(http, backend, path, body):
    answer = post(http, body, path)
    assert 400 <= answer.status_code < 500
    assert len(answer.content) < 1000
    error = answer.json()["error"]
    assert "\x1b" not in error["message"] + (error["param"] or "")


@pytest.mark.parametrize("path", ["/v1/models/", "/v1/", "/"])
def test_nor_a_path(http, path):
    answer = http.get(path + "a" * 60_000)
    assert answer.status_code == 404 and len(answer.content) < 1000


@pytest.mark.parametrize("is_parts", [False, True])
def test_too_many_messages_are_refused_before_each_is_looked_at(http, backend, is_parts):
    parts = [{"type": "text", "text": ""}] * 10_000
    message = {"role": "user", "content": parts if is_parts else ""}
    body = CHAT | {"messages": [message] * (2 if is_parts else 20_000)}
    answer = post(http, body, "/v1/chat/completions")
    assert_refused(answer, backend, 400, "invalid_value", "messages")
    assert "16384" in answer.json()["error"]["message"]
