"""How a request's tokens are chosen, and when it ends."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from muxcluster.text.schemas import CompletionBody
from muxcluster.text.validation.body import parse
from muxcluster.text.validation.constraints import constraint_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling and stopping rules of one request: a frozen value, checked when it is made.

    Fields have the names, ranges and defaults of the HTTP API. Raises InvalidValue (a
    RequestError) naming the field.

    >>> from muxcluster import RequestError, SamplingParams
    >>> SamplingParams(temperature=0, max_tokens=8).max_tokens
    8
    >>> try:
    ...     SamplingParams(top_p=1.5)
    ... except RequestError as error:
    ...     print(error.param)
    top_p

    An output can be held to a JSON schema, a regular expression, a choice or a grammar:

    >>> age = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    >>> params = SamplingParams(structured_outputs={"json": age}, max_tokens=64)
    >>> SamplingParams(structured_outputs={"choice": ["yes", "no"]}).structured_outputs
    {'choice': ['yes', 'no']}
    """

    max_tokens: int | None = None  # 16 for a prompt, what the context leaves for a chat
    min_tokens: int = 0  # no end before
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0  # in (0, 1]
    top_k: int | None = None  # None: all tokens
    min_p: float = 0.0  # relative to the most likely token
    repetition_penalty: float = 1.0  # over prompt and output, Hugging Face's rule
    frequency_penalty: float = 0.0  # over output only, OpenAI's rule
    presence_penalty: float = 0.0  # over output only, OpenAI's rule
    seed: int | None = None  # None draws one; the same seed gives the same tokens
    stop: tuple[str, ...] = ()  # at most four; the output ends before the first that comes
    stop_token_ids: tuple[int, ...] = ()  # end tokens beside the model's own
    ignore_eos: bool = False  # the model's own end tokens do not stop
    # What the output must match, in vLLM's form: {"json": schema}, or "regex", "choice", "grammar",
    # "json_object", "structural_tag"; None: any text
    structured_outputs: Mapping[str, Any] | None = None
    response_format: Mapping[str, Any] | None = None  # the same in OpenAI's form

    def __post_init__(self) -> None:
        wanted = {"model": "any", "prompt": "any", **body_fields(self)}
        constraint_of(parse(CompletionBody, wanted))


def body_fields(params: SamplingParams) -> dict[str, Any]:
    """Return the fields of an HTTP request's body."""
    values = {field.name: getattr(params, field.name) for field in fields(params)}
    return {name: _plain(value) for name, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value
