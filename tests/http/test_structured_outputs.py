"""Structured outputs of a model with random weights, with OpenAI's client over HTTP.

What such a model says is noise, so an output has its form by the constraint alone.
"""

import enum
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field

from tests.batch.jobs import line_of
from tests.constraints.schemas import Schemas
from tests.http.batches.clients import ended, read_lines, submit
from tests.http.live_server import NAME, configured, live_server

USER = [{"role": "user", "content": "Anne, 41, lives in Rome."}]
ROOM = 1200  # tokens, enough for the objects below whatever the model says


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel):
    model_config = ConfigDict(extra="forbid")

    city: str = Field(max_length=8)
    number: int = Field(ge=1, le=99)


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=8)
    likes: list[Colour] = Field(max_length=2)
    age: int | None = Field(ge=0, le=120)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    file = configured(tmp_path_factory.mktemp("structured"))
    with (
        live_server(file) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def test_parse_gives_the_model_of_every_choice(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=NAME, messages=USER, response_format=Person, n=3, seed=1, max_tokens=ROOM
    )
    found = [choice.message.parsed for choice in answer.choices]
    assert [choice.finish_reason for choice in answer.choices] == ["stop"] * 3
    assert all(isinstance(person, Person) for person in found)
    assert len({person.name for person in found if person is not None}) == 3


def test_a_parsed_stream_is_the_whole_answer(client: openai.OpenAI) -> None:
    ask = {"model": NAME, "messages": USER, "seed": 2, "max_tokens": ROOM}
    whole = client.chat.completions.parse(**ask, response_format=Person)
    with client.chat.completions.stream(**ask, response_format=Person) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_completion()
    assert kinds.count("content.delta") > 5
    assert kinds[-1] == "content.done"
    assert streamed.choices[0].message.content == whole.choices[0].message.content
    assert streamed.choices[0].message.parsed == whole.choices[0].message.parsed


def test_a_cut_answer_says_so(client: openai.OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            model=NAME, messages=USER, response_format=Person, max_tokens=3
        )


def test_equal_seeds_give_equal_answers_by_any_name(client: openai.OpenAI) -> None:
    schema = Address.model_json_schema()
    wanted = {"type": "json_schema", "json_schema": {"name": "p", "schema": schema}}
    found = set()
    for body in (
        {"response_format": wanted},
        {"structured_outputs": {"json": schema}},
        {"guided_json": json.dumps(schema)},
    ):
        answer = client.chat.completions.create(
            model=NAME, messages=USER, seed=5, max_tokens=ROOM, extra_body=body
        )
        found.add(answer.choices[0].message.content)
    assert len(found) == 1
    Address.model_validate_json(found.pop())


def test_json_object(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=NAME,
        messages=USER,
        response_format={"type": "json_object"},
        seed=4,
        max_tokens=100,
    )
    (choice,) = answer.choices
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)
    else:
        assert choice.message.content.startswith("{")


@pytest.mark.parametrize(
    ("body", "pattern"),
    [
        ({"guided_choice": ["yes", "no", "maybe not"]}, "yes|no|maybe not"),
        ({"guided_regex": r"\d{4}-(0[1-9]|1[0-2])"}, r"\d{4}-(0[1-9]|1[0-2])"),
        ({"structured_outputs": {"grammar": 'start: "a" ("," "b"){2,3}'}}, "a(,b){2,3}"),
        ({"guided_grammar": 'root ::= "a" | "b" [0-9]'}, "a|b[0-9]"),
        (
            {"structural_tag": {
                "format": {
                    "type": "tag",
                    "begin": "<n>",
                    "content": {"type": "regex", "pattern": "[a-c]{3}"},
                    "end": "</n>",
                }
            }},
            "<n>[a-c]{3}</n>",
        ),
    ],
    ids=["choice", "regex", "lark", "gbnf", "tag"],
)  # fmt: skip
@pytest.mark.parametrize("is_stream", [False, True])
def test_completions(client: openai.OpenAI, body: dict, pattern: str, is_stream: bool) -> None:
    ask = {"model": NAME, "prompt": "Is it?", "n": 2, "seed": 3, "extra_body": body}
    answer = client.completions.create(**ask, max_tokens=64, stream=is_stream)
    texts, reasons = {0: "", 1: ""}, {}
    for part in answer if is_stream else [answer]:
        for choice in part.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
    assert all(re.fullmatch(pattern, text) for text in texts.values()), texts
    assert reasons == {0: "stop", 1: "stop"}


def test_end_tokens_wait_for_the_end_of_the_form(client: openai.OpenAI) -> None:
    """The request ends where the form does, whatever else it asks for."""
    for more in ({"ignore_eos": True}, {"min_tokens": 30}, {"ignore_eos": True, "min_tokens": 30}):
        answer = client.completions.create(
            model=NAME,
            prompt="x",
            max_tokens=60,
            extra_body={"guided_choice": ["yes", "no"], **more},
        )
        assert answer.choices[0].text in ("yes", "no")
        assert answer.choices[0].finish_reason == "stop"


def test_echo_logprobs_and_stop(client: openai.OpenAI) -> None:
    ask = {"model": NAME, "prompt": "It is", "max_tokens": 40, "seed": 1}
    body = {"guided_regex": "[ab]{20}"}
    whole = client.completions.create(**ask, echo=True, logprobs=2, extra_body=body).choices[0]
    assert re.fullmatch("It is[ab]{20}", whole.text)
    begin, *tokens, end = whole.logprobs.tokens  # special ones, which the text does not show
    assert "".join(tokens) == whole.text
    assert all(value is not None and value <= 0 for value in whole.logprobs.token_logprobs[1:])
    stop = whole.text[10:12]
    cut = client.completions.create(**ask, stop=stop, extra_body=body).choices[0]
    assert cut.finish_reason == "stop"
    rest = whole.text.removeprefix("It is")
    assert cut.text == rest[: rest.index(stop)]


def test_a_bias_cannot_break_the_form(client: openai.OpenAI) -> None:
    bias = {str(token): (100 if token % 2 else -100) for token in range(512)}
    answer = client.completions.create(
        model=NAME,
        prompt="x",
        max_tokens=40,
        logit_bias=bias,
        frequency_penalty=2,
        extra_body={"guided_regex": "[0-9]{8}", "repetition_penalty": 1.5},
    )
    assert re.fullmatch("[0-9]{8}", answer.choices[0].text)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    "body",
    [
        {"guided_grammar": "start: nothing"},
        {"guided_regex": "(a"},
        {"guided_json": {"allOf": [{"type": "string"}, {"type": "integer"}]}},
    ],
    ids=["rule", "group", "contradiction"],
)
def test_what_does_not_compile_is_400(client: openai.OpenAI, body: dict, is_stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=NAME, messages=USER, stream=is_stream, extra_body=body)
    assert error.value.code == "invalid_value"
    assert len(error.value.message) < 2000


def test_a_hostile_schema_beside_a_normal_request(client: openai.OpenAI) -> None:
    """It ends with an answer or 400, and the other has the tokens that it has alone."""
    ask = {"model": NAME, "messages": USER, "seed": 7, "max_tokens": 300}
    wanted = {"guided_json": Address.model_json_schema()}
    alone = client.chat.completions.create(**ask, extra_body=wanted).choices[0].message.content
    names = {f"p{i}": {"type": "string", "pattern": f"(a|b|c{i}){{1,50}}"} for i in range(300)}
    hostile = {
        "guided_json": {"type": "object", "properties": names, "additionalProperties": False}
    }
    statuses: list[int] = []

    def attack() -> None:
        try:
            client.chat.completions.create(**ask | {"max_tokens": 5}, extra_body=hostile)
            statuses.append(200)
        except openai.APIStatusError as error:
            statuses.append(error.status_code)

    threads = [threading.Thread(target=attack) for _ in range(3)]
    for thread in threads:
        thread.start()
    beside = client.chat.completions.create(**ask, extra_body=wanted).choices[0].message.content
    for thread in threads:
        thread.join()
    assert beside == alone
    assert len(statuses) == 3 and set(statuses) <= {200, 400}


def test_lines_of_a_batch(client: openai.OpenAI) -> None:
    chat = {"model": NAME, "messages": USER, "max_tokens": ROOM}
    schema = {"name": "a", "schema": Address.model_json_schema()}
    url = "/v1/chat/completions"
    lines = [
        line_of(f"good{seed}", url=url, body=chat | {
            "seed": seed, "response_format": {"type": "json_schema", "json_schema": schema}
        })
        for seed in range(2)
    ] + [line_of("bad", url=url, body=chat | {"guided_grammar": "start: nothing"})]  # fmt: skip
    batch = ended(client, submit(client, lines, endpoint=url).id)
    found = read_lines(client, batch.output_file_id)
    assert found.keys() == {f"good{seed}" for seed in range(2)}
    for line in found.values():
        content = line["response"]["body"]["choices"][0]["message"]["content"]
        Address.model_validate_json(content)
    bad = read_lines(client, batch.error_file_id)["bad"]["response"]
    assert (bad["status_code"], bad["body"]["error"]["code"]) == (400, "invalid_value")


@pytest.mark.slow
def test_outputs_of_random_schemas_streamed_or_not(client: openai.OpenAI) -> None:
    """The same bytes for the same seed, and valid where they ended by themselves."""

    def answer(seed: int) -> str:
        schema = Schemas(seed).draw()
        form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
        ask = {
            "model": NAME,
            "messages": USER,
            "seed": seed,
            "max_tokens": 200,
            "response_format": form,
        }
        try:
            (whole,) = client.chat.completions.create(**ask).choices
        except openai.BadRequestError:
            with pytest.raises(openai.BadRequestError):
                client.chat.completions.create(**ask, stream=True)
            return "refused"
        text, reason = "", None
        for chunk in client.chat.completions.create(**ask, stream=True):
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reason = choice.finish_reason or reason
        assert (text, reason) == (whole.message.content, whole.finish_reason)
        if reason == "length":
            return "cut"
        problems = list(Draft202012Validator(schema).iter_errors(json.loads(text)))
        assert not problems, (schema, text)
        return "valid"

    with ThreadPoolExecutor(8) as pool:
        found = Counter(pool.map(answer, range(9000, 9200)))
    assert found["valid"] > 100, found
