"""Structured outputs through other people's clients, which send OpenAI's fields in their own ways.

OpenAI's client for Node has a file of its own. Each is skipped where it is not installed.
"""

from collections.abc import Iterator

import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

from tests.http.live_server import NAME, configured, live_server

# They warn, at import too, of what is their own business.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

TEXT = "Anne, 41, lives in Rome."
USER = [{"role": "user", "content": TEXT}]
ROOM = 1200


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=120)
    cities: list[str] = Field(max_length=2)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with live_server(configured(tmp_path_factory.mktemp("clients"))) as url:
        yield f"{url}/v1"


def test_instructor(url: str) -> None:
    instructor = pytest.importorskip("instructor")
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as plain:
        client = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
        person = client.chat.completions.create(
            model=NAME, messages=USER, response_model=Person, max_tokens=ROOM, max_retries=0
        )
    assert isinstance(person, Person)


def test_langchain(url: str) -> None:
    langchain = pytest.importorskip("langchain_openai")
    chat = langchain.ChatOpenAI(
        model=NAME, base_url=url, api_key="none", max_tokens=ROOM, max_retries=0
    )
    for method in ("json_schema", "json_mode"):
        structured = chat.with_structured_output(Person, method=method, include_raw=True)
        found = structured.invoke(TEXT)
        assert found["raw"].content.startswith("{")
        if method == "json_schema":
            assert isinstance(found["parsed"], Person)


def test_pydantic_ai(url: str) -> None:
    pydantic_ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel(NAME, provider=OpenAIProvider(base_url=url, api_key="none"))
    agent = pydantic_ai.Agent(
        model, output_type=pydantic_ai.NativeOutput(Person), model_settings={"max_tokens": ROOM}
    )
    assert isinstance(agent.run_sync(TEXT).output, Person)


def test_litellm(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no download at import
    litellm = pytest.importorskip("litellm")
    answer = litellm.completion(
        model=f"openai/{NAME}",
        api_base=url,
        api_key="none",
        messages=USER,
        response_format=Person,
        max_tokens=ROOM,
    )
    Person.model_validate_json(answer.choices[0].message.content)
