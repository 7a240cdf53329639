"""Pydantic AI."""

from checks import MODEL, NO_THINKING, URL, run
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=f"{URL}/v1", api_key="none")
TEXT = "Anne, 41, lives in Rome."


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=120)


def agent(output, max_tokens=900, kind=OpenAIChatModel):
    settings = {"max_tokens": max_tokens, "extra_body": NO_THINKING}
    return Agent(kind(MODEL, provider=provider), output_type=output, model_settings=settings)


def text():
    assert isinstance(agent(str, 8).run_sync(TEXT).output, str)


async def text_streamed():
    async with agent(str, 8).run_stream(TEXT) as found:
        assert [piece async for piece in found.stream_text()]


def native_output():
    assert isinstance(agent(NativeOutput(Person)).run_sync(TEXT).output, Person)


def tool_output():
    assert isinstance(agent(ToolOutput(Person)).run_sync(TEXT).output, Person)


def responses_api():
    assert isinstance(agent(str, 16, OpenAIResponsesModel).run_sync(TEXT).output, str)


run(text, text_streamed, native_output, tool_output, responses_api)
