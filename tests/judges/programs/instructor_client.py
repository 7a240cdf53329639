"""Instructor."""

import instructor
import openai
from checks import MODEL, NO_THINKING, URL, run
from pydantic import BaseModel, ConfigDict, Field

plain = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
FIELDS = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Anne, 41, lives in Rome."}],
    "max_tokens": 900,
    "max_retries": 0,
    "extra_body": NO_THINKING,
}


class Person(BaseModel):
    """A person."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=120)


def made(mode, **more):
    client = instructor.from_openai(plain, mode=mode)
    found = client.chat.completions.create(response_model=Person, **FIELDS, **more)
    assert isinstance(found, Person)


def json_schema():
    made(instructor.Mode.JSON_SCHEMA)


def tools():
    made(instructor.Mode.TOOLS, parallel_tool_calls=False)


def tools_strict():
    made(instructor.Mode.TOOLS_STRICT)


run(json_schema, tools, tools_strict)
