"""The Messages API by Anthropic's own client, where it is installed (the extra `dev` has it)."""

import pydantic
import pytest

from muxcluster.http.app import create_app
from muxcluster.http.settings import ApiSettings
from tests.http.apis.calling import (
    ARGUMENTS,
    CALL,
    CLOCK_CALL,
    SCHEMA,
    THOUGHT,
    make_thinking_model,
)
from tests.http.fakes import running_server
from tests.http.tool_models import ScriptedModel

anthropic = pytest.importorskip("anthropic")

KEY = "secret"
TOOLS = [
    {"name": "get_weather", "description": "Tells it.", "input_schema": SCHEMA},
    {"name": "clock", "input_schema": {"type": "object", "properties": {}}},
]
USER = {"role": "user", "content": "Weather?"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return ScriptedModel(make_thinking_model(tmp_path_factory.mktemp("models") / "thinking"))


@pytest.fixture(scope="module")
def url(model):
    with running_server(create_app(model.backend, ApiSettings(api_key=KEY))) as url:
        yield url


@pytest.fixture(scope="module")
def client(url):
    with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as client:
        yield client


def asked(**fields):
    return {"model": "tiny", "max_tokens": 300, "messages": [USER], **fields}


def test_a_tool_loop_whole_and_streamed(model, client) -> None:
    model.says = [f"{THOUGHT}Let me see.\n{CALL}\n{CLOCK_CALL}"]
    fields = {"tools": TOOLS, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    whole = client.messages.create(**asked(**fields))
    with client.messages.stream(**asked(**fields)) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_message()
    assert {"thinking", "text", "input_json", "message_stop"} <= kinds
    for message in (whole, final):
        assert message.stop_reason == "tool_use"
        thinking, text, weather, clock = message.content
        assert (thinking.thinking, text.text) == ("Hm, so.", "Let me see.")
        assert (weather.name, weather.input, clock.input) == ("get_weather", ARGUMENTS, {})
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.usage.cache_read_input_tokens == whole.usage.cache_read_input_tokens == 3
    assert final.usage.input_tokens == whole.usage.input_tokens
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": "12"}
        for call in (weather, clock)
    ]
    model.says = ["Cold."]
    messages = [
        USER,
        {"role": "assistant", "content": final.content},
        {"role": "user", "content": results},
    ]
    last = client.messages.create(**asked(messages=messages, tools=TOOLS))
    assert [block.text for block in last.content] == ["Cold."]
    assert model.prompt().count("<tool_response>\n12\n</tool_response>") == 2


def test_text_stream_and_stop_sequence(model, client) -> None:
    model.says = ["One, two and three"]
    with client.messages.stream(**asked(stop_sequences=["and"])) as stream:
        assert "".join(stream.text_stream) == "One, two "
        final = stream.get_final_message()
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", "and")


def test_tokens_are_counted(model, client) -> None:
    model.says = ["ok"]
    counted = client.messages.count_tokens(model="tiny", messages=[USER], tools=TOOLS, system="S")
    client.messages.create(**asked(tools=TOOLS, system="S"))
    assert counted.input_tokens == len(model.backend.requests[-1].prompt_tokens)


def test_an_output_is_parsed(model, client) -> None:
    class City(pydantic.BaseModel):
        city: str

    model.says = ['{"city": "Rome"}']
    found = client.messages.parse(**asked(output_format=City))
    assert found.parsed_output == City(city="Rome")
    assert "city" in model.backend.requests[-1].sampling.constraint.grammar


def test_errors_are_the_clients(url, client) -> None:
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(**asked(max_tokens=0))
    with pytest.raises(anthropic.NotFoundError, match="other"):
        client.messages.create(**{**asked(), "model": "other"})
    with (
        anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError, match="API key"),
    ):
        stranger.messages.create(**asked())
