"""Tools through other people's clients, which send OpenAI's fields in their own ways.

OpenAI's client for Node has a file of its own. Each is skipped where it is not installed.
"""

import json
from collections.abc import Iterator

import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

from tests.http.live_server import NAME, live_server
from tests.http.tool_models import tool_model

# what the clients say to each other's and to Python's versions is not ours to mend
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

TEXT = "Anne, 41, lives in Rome."
USER = [{"role": "user", "content": TEXT}]
ROOM = 900
# a model that thinks would think about it first, and this one has nothing to think
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}


class Person(BaseModel):
    """A person."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=120)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with live_server(tool_model(tmp_path_factory.mktemp("clients"))) as url:
        yield f"{url}/v1"


def test_instructor(url: str) -> None:
    instructor = pytest.importorskip("instructor")
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as plain:
        client = instructor.from_openai(plain, mode=instructor.Mode.TOOLS)
        person = client.chat.completions.create(
            model=NAME,
            messages=USER,
            response_model=Person,
            max_tokens=ROOM,
            max_retries=0,
            parallel_tool_calls=False,
            extra_body=NO_THINKING,
        )
    assert isinstance(person, Person)


def test_langchain(url: str) -> None:
    langchain = pytest.importorskip("langchain_openai")
    chat = langchain.ChatOpenAI(
        model=NAME,
        base_url=url,
        api_key="none",
        max_tokens=ROOM,
        max_retries=0,
        extra_body=NO_THINKING,
    )
    structured = chat.with_structured_output(Person, method="function_calling")
    assert isinstance(structured.invoke(TEXT), Person)

    def weather(city: str) -> str:
        """Tell the weather of a city."""
        return f"12 °C in {city}"

    bound = chat.bind_tools([weather], tool_choice="weather", parallel_tool_calls=False)
    first = bound.invoke(TEXT)
    (call,) = first.tool_calls
    assert call["name"] == "weather"
    assert isinstance(call["args"]["city"], str)
    streamed = None
    for chunk in bound.stream(TEXT):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed.tool_calls[0]["name"] == "weather"
    result = {"role": "tool", "tool_call_id": call["id"], "content": "12 °C"}
    assert bound.invoke([*USER, first, result]).tool_calls


def test_pydantic_ai(url: str) -> None:
    pydantic_ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel(NAME, provider=OpenAIProvider(base_url=url, api_key="none"))
    settings = {"max_tokens": ROOM, "parallel_tool_calls": False, "extra_body": NO_THINKING}
    # an output type is a tool that must be called
    agent = pydantic_ai.Agent(model, output_type=Person, model_settings=settings)
    assert isinstance(agent.run_sync(TEXT).output, Person)


def test_litellm(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm")
    tool = openai.pydantic_function_tool(Person, name="save")
    choice = {"type": "function", "function": {"name": "save"}}
    fields = {
        "model": f"openai/{NAME}",
        "api_base": url,
        "api_key": "none",
        "messages": USER,
        "tools": [tool],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "max_tokens": ROOM,
        "seed": 4,
        "extra_body": NO_THINKING,
    }
    (call,) = litellm.completion(**fields).choices[0].message.tool_calls
    Person.model_validate_json(call.function.arguments)
    chunks = litellm.completion(**fields, stream=True)
    built = litellm.stream_chunk_builder(list(chunks))
    (again,) = built.choices[0].message.tool_calls
    assert json.loads(again.function.arguments) == json.loads(call.function.arguments)
