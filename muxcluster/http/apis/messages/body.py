"""Bodies of the Messages API: field names, types and ranges."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from muxcluster.http.apis.reading import ApiBody, Tokens
from muxcluster.text.schemas import MAX_STOPS, Effort, StopText


class ThinkingBody(BaseModel):
    """`thinking`. budget_tokens: not enforced, `max_tokens` bounds reasoning and answer."""

    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Tokens | None = None
    display: Literal["summarized", "omitted"] | None = None

    @property
    def is_shown(self) -> bool:
        """True if the answer is to have what the model thinks."""
        return self.type != "disabled" and self.display != "omitted"


class OutputConfig(BaseModel):
    """`output_config`. format: a JSON schema."""

    model_config = ConfigDict(strict=True, extra="forbid")

    effort: Effort | None = None
    format: dict[str, Any] | None = None


class CountTokensBody(ApiBody):
    """POST /v1/messages/count_tokens: what makes the prompt."""

    messages: Any
    system: Any = None
    tools: Any = None
    tool_choice: Any = None
    thinking: ThinkingBody | None = None
    output_config: OutputConfig | None = None


class MessagesBody(CountTokensBody):
    """POST /v1/messages. What its lists hold is checked by `messages.chat`."""

    max_tokens: Tokens
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    stop_sequences: Annotated[list[StopText], Field(max_length=MAX_STOPS)] | None = None
    service_tier: Literal["auto", "standard_only", "flex"] | None = None
