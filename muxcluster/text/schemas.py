"""Bodies of the OpenAI routes: field names, types and ranges (null means the default)."""

from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from muxcluster.core.errors import InvalidJson
from muxcluster.core.inputs.json_text import parse_json

INT64 = 2**63
MAX_STOPS = 4
MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_STOP_TOKEN_IDS = 128
MAX_BIASES = 4096
MAX_TOOLS = 128
MAX_METADATA = 16
# of files, as in OpenAI's API
MIN_LIFETIME_S, MAX_LIFETIME_S = 3600, 30 * 86400

Int64 = Annotated[int, Field(ge=-INT64, lt=INT64)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=INT64)]
Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
NonEmpty = Annotated[str, Field(min_length=1)]
# The tables to find one are made for every choice, in Python, and grow with its length
StopText = Annotated[str, Field(min_length=1, max_length=1024)]
ShortText = Annotated[str, Field(min_length=1, max_length=200)]
MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]
FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
CacheSalt = Annotated[str, Field(max_length=128, pattern=r"^[^@/\\\x00]*$")]
# As names in the configuration are
ModelName = Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z0-9][\w.:/-]*$")]
Identifier = Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,128}$")]


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _not_too_many(value: object) -> object:
    """Return `value`; found before its items are checked, each of which could be an error."""
    if isinstance(value, dict) and len(value) > MAX_BIASES:
        reason = "at most {most} tokens may have a bias"
        raise PydanticCustomError("too_many", reason, {"most": MAX_BIASES})
    return value


def _few_pairs(value: object) -> object:
    """Return a larger object with one pair too many; each could be an error."""
    if not isinstance(value, dict):
        return value
    return dict(islice(value.items(), MAX_METADATA + 1))


def _to_first_wrong(value: object) -> object:
    """Return texts up to the first that is none; each could be an error."""
    if not isinstance(value, list):
        return value
    wrong = (index for index, each in enumerate(value) if not isinstance(each, str))
    return value[: next(wrong, len(value)) + 1]


def _from_json_text(value: object) -> object:
    """Return what a JSON text says, and other values as they are."""
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value.encode(), "it")
    except InvalidJson as error:
        raise PydanticCustomError("json_text", "{reason}", {"reason": error.message}) from None


Biases = Annotated[dict[str, Bias], BeforeValidator(_not_too_many)]
# pydantic itself stops at the length of a list, but not at that of a dict
Stops = Annotated[list[StopText], Field(max_length=MAX_STOPS), BeforeValidator(_as_list)]
Metadata = Annotated[
    dict[MetadataKey, MetadataValue], Field(max_length=MAX_METADATA), BeforeValidator(_few_pairs)
]
# vLLM's clients send objects, SGLang's their JSON text
JsonObject = Annotated[dict[str, Any], BeforeValidator(_from_json_text)]
Choices = Annotated[list[str], Field(min_length=1), BeforeValidator(_to_first_wrong)]
Texts = Annotated[Choices, BeforeValidator(_as_list)]


class Closed(BaseModel):
    """An object with no other names than its fields."""

    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _one_unknown(cls, value: object) -> object:
        """Leave one unknown name, each of which would be an error."""
        if not isinstance(value, dict):
            return value
        known = {field.alias or name for name, field in cls.model_fields.items()}
        unknown = next((name for name in value if name not in known), None)
        return {name: each for name, each in value.items() if name in known or name == unknown}


class StreamOptions(Closed):
    """`stream_options`: what a stream has beside text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class SloBody(Closed):
    """`slo`: latency targets in seconds; an absent one is the model's."""

    ttft: Seconds | None = None
    tpot: Seconds | None = None


class JsonSchemaFormat(Closed):
    """`response_format.json_schema`. name, description: nobody is shown them. strict: the schema is
    enforced whatever it says."""

    name: ShortText
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Closed):
    """`response_format`: OpenAI's types, and `structural_tag` with vLLM's fields.

    What `format` or `structures` hold is checked by `constraints.structural_tags`.
    """

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    format: dict[str, Any] | None = None
    structures: list[Any] | None = None
    triggers: list[Any] | None = None


class StructuredOutputs(Closed):
    """`structured_outputs` of vLLM: one constraint; options that would change it are refused."""

    json_: JsonObject | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    structural_tag: JsonObject | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None


class GenerationBody(BaseModel):
    """Fields that both generation routes share; those of vLLM keep vLLM's meaning."""

    model_config = ConfigDict(strict=True, extra="ignore")

    model: NonEmpty
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Count | None = None
    min_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=INT64)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: Biases | None = None
    seed: Int64 | None = None
    stop: Stops | None = None
    stop_token_ids: Annotated[list[Count], Field(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, lt=INT64)] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonObject | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    json_schema: JsonObject | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: JsonObject | None = None
    service_tier: Literal["auto", "default", "priority", "scale", "flex"] | None = None
    slo: SloBody | None = None
    priority: Int64 | None = None
    cache_salt: CacheSalt | None = None
    request_id: Identifier | None = None


class CompletionBody(GenerationBody):
    """POST /v1/completions. `prompt` is checked by `validation_prompts`."""

    prompt: Any
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None


class TextsBody(BaseModel):
    """Fields that all routes of embedding models share."""

    model_config = ConfigDict(strict=True, extra="ignore")

    model: NonEmpty
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, lt=INT64)] | None = None
    add_special_tokens: bool | None = None
    service_tier: Literal["auto", "default", "priority", "scale", "flex"] | None = None
    slo: SloBody | None = None
    priority: Int64 | None = None
    cache_salt: Annotated[str, Field(max_length=128, pattern=r"^[^@/\\\x00]*$")] | None = None
    request_id: Identifier | None = None


class EmbeddingBody(TextsBody):
    """POST /v1/embeddings. `input` is checked by `validation_prompts`."""

    input: Any
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, lt=INT64)] | None = None


class ScoreBody(TextsBody):
    """POST /v1/score: how near texts are. text_1: one, or as many as text_2 has."""

    text_1: Texts
    text_2: Texts


class RerankBody(TextsBody):
    """POST /v1/rerank: documents, the nearest to a query first. return_documents: their texts too,
    by default."""

    query: str
    documents: Choices
    top_n: Annotated[int, Field(ge=1, lt=INT64)] | None = None
    return_documents: bool | None = None


class FunctionBody(Closed):
    """A function that the model may call. parameters: the JSON schema of its arguments."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(Closed):
    """An entry of `tools`."""

    type: Literal["function"]
    function: FunctionBody


Tools = Annotated[list[ToolBody], Field(max_length=MAX_TOOLS)]


class ChatBody(GenerationBody):
    """POST /v1/chat/completions. `messages` are checked by `validation_prompts`."""

    messages: Any
    tools: Tools | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    include_reasoning: bool | None = None
    separate_reasoning: bool | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeBody(BaseModel):
    """POST /tokenize: a `prompt`, or `messages` as chat would render them."""

    model_config = ConfigDict(strict=True, extra="ignore")

    model: NonEmpty | None = None
    prompt: str | None = None
    messages: Any = None
    tools: Tools | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(BaseModel):
    """POST /detokenize."""

    model_config = ConfigDict(strict=True, extra="ignore")

    model: NonEmpty | None = None
    tokens: Any


class LoadAdapterBody(BaseModel):
    """POST /v1/load_lora_adapter, as vLLM has it, for admin keys.

    base_model_name: by default the only model with places. load_inplace: an adapter of that name
    gives way.
    """

    model_config = ConfigDict(strict=True, extra="ignore")

    lora_name: ModelName
    lora_path: Annotated[str, Field(min_length=1, max_length=4096)]
    base_model_name: NonEmpty | None = None
    load_inplace: bool | None = None


class WhatIfBody(BaseModel):
    """POST /v1/cluster/plan: changes as `muxcluster place --what-if` has them, made in turn."""

    model_config = ConfigDict(strict=True, extra="ignore")

    changes: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=400)]], Field(max_length=100)
    ]


class UnloadAdapterBody(BaseModel):
    """POST /v1/unload_lora_adapter, as vLLM has it, for admin keys; `lora_int_id` says nothing."""

    model_config = ConfigDict(strict=True, extra="ignore")

    lora_name: NonEmpty
    lora_int_id: Int64 | None = None


class ExpiresAfter(Closed):
    """When a file expires, as in OpenAI's API: so many seconds after it was made."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=MIN_LIFETIME_S, le=MAX_LIFETIME_S)]


class ExpiryForm(Closed):
    """The `expires_after` of an upload's form."""

    expires_after: ExpiresAfter


class BatchBody(BaseModel):
    """`POST /v1/batches`. completion_window: 1m to 30d, after which the rest expires.
    output_expires_after: when the result files do."""

    model_config = ConfigDict(strict=True, extra="ignore")

    input_file_id: ShortText
    endpoint: ShortText
    completion_window: ShortText
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None


class BatchPlanBody(BaseModel):
    """`POST /v1/batches/plan`: predicts the job in a file. endpoint: as a batch's; absent: any."""

    model_config = ConfigDict(strict=True, extra="ignore")

    input_file_id: ShortText
    endpoint: ShortText | None = None
