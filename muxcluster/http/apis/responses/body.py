"""Body of the Responses API: field names, types and ranges."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from muxcluster.http.apis.reading import ApiBody, Tokens
from muxcluster.text.schemas import Effort, MetadataKey, MetadataValue


class TextConfig(BaseModel):
    """`text`. format: `text`, `json_object` or `json_schema`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    format: dict[str, Any] | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningConfig(BaseModel):
    """`reasoning`. summary: none is made, the answer has the reasoning itself."""

    model_config = ConfigDict(strict=True, extra="forbid")

    effort: Effort | None = None
    summary: Literal["auto"] | None = None


class ResponseStreamOptions(BaseModel):
    """`stream_options`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    include_obfuscation: bool | None = None


class ResponsesBody(ApiBody):
    """POST /v1/responses. What its lists hold is checked by `responses.chat`."""

    input: Any
    instructions: str | None = None
    max_output_tokens: Tokens | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Tokens | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    service_tier: Literal["auto", "default", "priority", "scale", "flex"] | None = None
    truncation: Literal["disabled"] | None = None
    # what the model thinks is in the answer as it is, so that nothing has to be encrypted
    include: list[Literal["reasoning.encrypted_content"]] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=0)] | None = None
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)] | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
