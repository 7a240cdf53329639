"""OpenAI's client for Python."""

import io
import json
import time

import openai
from checks import EMBEDDER, MODEL, NO_THINKING, URL, run
from pydantic import BaseModel, ConfigDict, Field

client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
USER = [{"role": "user", "content": "Anne, 41, lives in Rome."}]
SHORT = {"max_tokens": 12, "extra_body": NO_THINKING}


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=120)


def models():
    assert {each.id for each in client.models.list()} == {MODEL, EMBEDDER}
    assert client.models.retrieve(MODEL).id == MODEL


def chat():
    answer = client.chat.completions.create(model=MODEL, messages=USER, **SHORT)
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def chat_streamed():
    stream = client.chat.completions.create(
        model=MODEL, messages=USER, stream=True, stream_options={"include_usage": True}, **SHORT
    )
    chunks = list(stream)
    assert chunks[-1].usage.completion_tokens > 0
    assert sum(bool(c.choices and c.choices[0].finish_reason) for c in chunks) == 1


def chat_of_n_with_logprobs():
    answer = client.chat.completions.create(
        model=MODEL, messages=USER, n=2, logprobs=True, top_logprobs=2, seed=1, **SHORT
    )
    assert [len(each.logprobs.content[0].top_logprobs) for each in answer.choices] == [2, 2]


def completion_with_echo():
    answer = client.completions.create(
        model=MODEL, prompt="Many models", max_tokens=4, echo=True, logprobs=1
    )
    assert answer.choices[0].text.startswith("Many models")
    assert answer.choices[0].logprobs.token_logprobs[0] is None


def parsed():
    answer = client.chat.completions.parse(
        model=MODEL, messages=USER, response_format=Person, max_tokens=900, extra_body=NO_THINKING
    )
    assert isinstance(answer.choices[0].message.parsed, Person)


def tools():
    tool = openai.pydantic_function_tool(Person)
    answer = client.chat.completions.create(
        model=MODEL,
        messages=USER,
        tools=[tool],
        tool_choice={"type": "function", "function": {"name": "Person"}},
        max_tokens=900,
        extra_body=NO_THINKING,
    )
    Person.model_validate_json(answer.choices[0].message.tool_calls[0].function.arguments)


def embeddings():
    answer = client.embeddings.create(model=EMBEDDER, input=["one", "two words"])
    assert [len(each.embedding) for each in answer.data] == [len(answer.data[0].embedding)] * 2
    assert abs(sum(x * x for x in answer.data[0].embedding) - 1) < 1e-4


def responses_kept():
    first = client.responses.create(model=MODEL, input="Hi", max_output_tokens=8)
    assert client.responses.retrieve(first.id).output == first.output
    second = client.responses.create(
        model=MODEL, input="More", max_output_tokens=8, previous_response_id=first.id
    )
    assert second.usage.input_tokens > first.usage.input_tokens
    assert client.responses.input_items.list(second.id).data
    client.responses.delete(first.id)


def responses_streamed():
    with client.responses.stream(model=MODEL, input="Hi", max_output_tokens=8) as stream:
        kinds = [event.type for event in stream]
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.completed", "response.incomplete")


def responses_in_the_background():
    made = client.responses.create(model=MODEL, input="Hi", max_output_tokens=8, background=True)
    while (found := client.responses.retrieve(made.id)).status in ("queued", "in_progress"):
        time.sleep(0.05)
    assert found.status in ("completed", "incomplete")


def files_and_batches():
    body = {"model": MODEL, "messages": USER, "max_tokens": 4}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    content = io.BytesIO(json.dumps(line).encode())
    file = client.files.create(file=("lines.jsonl", content), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    while (found := client.batches.retrieve(batch.id)).status not in ("completed", "failed"):
        time.sleep(0.1)
    assert found.request_counts.completed == 1
    assert json.loads(client.files.content(found.output_file_id).text)["custom_id"] == "1"


def errors():
    for model, kind in (("nobody", openai.NotFoundError), (EMBEDDER, openai.BadRequestError)):
        try:
            client.chat.completions.create(model=model, messages=USER)
        except kind as error:
            assert error.body["message"]
        else:
            raise AssertionError(f"{model} answered")


run(
    models,
    chat,
    chat_streamed,
    chat_of_n_with_logprobs,
    completion_with_echo,
    parsed,
    tools,
    embeddings,
    responses_kept,
    responses_streamed,
    responses_in_the_background,
    files_and_batches,
    errors,
)
