"""Bodies of the API: wrong ones cost no more than one error of each kind of thing."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from muxcluster.core.errors import InvalidValue, RequestError, UnsupportedParameter
from muxcluster.text.schemas import (
    BatchBody,
    ChatBody,
    CompletionBody,
    GenerationBody,
    RerankBody,
    ScoreBody,
)
from muxcluster.text.validation.body import parse

MANY = 10_000
NAMES = {f"x{number}": 1 for number in range(MANY)}
TEXT = {"model": "m", "prompt": "p"}
CHAT = {"model": "m", "messages": []}
BATCH = {"input_file_id": "f", "endpoint": "e", "completion_window": "24h"}
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("schema", "body", "most", "param"),
    [
        (CompletionBody, TEXT | {"guided_choice": ["a", *[1] * MANY]}, 1, "guided_choice[1]"),
        (
            CompletionBody,
            TEXT | {"structured_outputs": {"choice": [None] * MANY}},
            1,
            "structured_outputs.choice[0]",
        ),
        (ScoreBody, {"model": "m", "text_1": "a", "text_2": [{}] * MANY}, 1, "text_2[0]"),
        (ScoreBody, {"model": "m", "text_1": [5] * MANY, "text_2": "a"}, 1, "text_1[0]"),
        (RerankBody, {"model": "m", "query": "q", "documents": [1] * MANY}, 1, "documents[0]"),
        (CompletionBody, TEXT | {"stop": [""] * MANY}, 1, "stop"),
        (CompletionBody, TEXT | {"stop_token_ids": [-1] * MANY}, 1, "stop_token_ids"),
        (ChatBody, CHAT | {"tools": [0] * MANY}, 1, "tools"),
        (BatchBody, BATCH | {"metadata": NAMES}, 17, "metadata.x0"),
        (CompletionBody, TEXT | {"slo": NAMES}, 1, "slo.x0"),
        (CompletionBody, TEXT | {"stream_options": NAMES}, 1, "stream_options.x0"),
        (CompletionBody, TEXT | {"structured_outputs": NAMES}, 1, "structured_outputs.x0"),
        (
            CompletionBody,
            TEXT | {"response_format": {"type": "text"} | NAMES},
            1,
            "response_format.x0",
        ),
        (ChatBody, CHAT | {"tools": [TOOL | NAMES]}, 1, "tools[0].x0"),
    ],
)
def test_a_wrong_body_has_few_errors(
    schema: type[BaseModel], body: dict[str, Any], most: int, param: str
) -> None:
    """Each is an object with a copy of its path: 150,000 took half a second."""
    with pytest.raises(ValidationError) as found:
        schema.model_validate(body)
    assert 1 <= found.value.error_count() <= most
    with pytest.raises(RequestError) as told:
        parse(schema, body)
    assert told.value.param == param
    is_unknown = most == 1 and param.endswith("x0")
    assert isinstance(told.value, UnsupportedParameter if is_unknown else InvalidValue)


def test_what_is_right_is_kept_whole() -> None:
    documents = [str(number) for number in range(MANY)]
    read = RerankBody.model_validate({"model": "m", "query": "q", "documents": documents})
    assert read.documents == documents
    fields = {
        "stop": ["a", "b", "c", "d"],
        "stop_token_ids": list(range(128)),
        "guided_choice": documents,
        "structured_outputs": {"json": {"type": "object"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
    }
    body = GenerationBody.model_validate({"model": "m"} | fields)
    assert body.model_dump(by_alias=True, exclude_none=True) == {"model": "m"} | fields
    assert CompletionBody.model_validate(TEXT | {"stop": "end"}).stop == ["end"]
    assert ScoreBody.model_validate({"model": "m", "text_1": "a", "text_2": "b"}).text_2 == ["b"]


def test_one_too_many_is_one_too_many() -> None:
    for name, value in (("stop", ["a"] * MANY), ("stop_token_ids", [1] * MANY)):
        with pytest.raises(InvalidValue, match="at most"):
            parse(CompletionBody, TEXT | {name: value})
    metadata = {f"x{number}": "v" for number in range(17)}
    with pytest.raises(InvalidValue, match="at most 16"):
        parse(BatchBody, BATCH | {"metadata": metadata})
