"""Tokenizer, chat template and limits of each served model."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.errors import (
    ContextLengthExceeded,
    InvalidValue,
    LoadError,
    MissingParameter,
    ModelNotFound,
    NotReady,
    UnsupportedParameter,
)
from muxcluster.core.inputs.clip import clip
from muxcluster.core.inputs.images.rules import ImageLimits, ImageRules, read_image_rules
from muxcluster.core.served import ServedModel
from muxcluster.text.reasoning import HARMONY, PromptEnd, ReasoningTags, tags_of
from muxcluster.text.rendering.pool import RenderPool
from muxcluster.text.schemas import ChatBody, TokenizeBody
from muxcluster.text.template import ChatTemplate, RenderOptions
from muxcluster.text.tokenizer import Tokenizer
from muxcluster.text.tools import harmony
from muxcluster.text.tools.asked import AskedTools
from muxcluster.text.tools.formats import ModelTools, ToolFormat, tools_of
from muxcluster.text.tools.messages import described, with_thinking
from muxcluster.text.validation.images import ImageParts

T = TypeVar("T")
logger = logging.getLogger(__name__)

RETRY_S = 5.0  # until a model's files are read again after a failure


@dataclass(frozen=True, slots=True)
class ModelText:
    """Turns messages and text of one model into tokens.

    template: None if it has none. tools: how it writes tool calls. tags: around its reasoning, None
    if it writes none. has_channels: outputs are messages in the harmony format.
    """

    served: ServedModel
    tokenizer: Tokenizer
    template: ChatTemplate | None
    tools: ModelTools
    tags: ReasoningTags | None
    has_channels: bool = False
    images: ImageRules | None = None

    def image_parts(self, limits: ImageLimits) -> ImageParts | None:
        """Return what takes the images out of messages; None if the model takes none."""
        return None if self.images is None else ImageParts(limits)

    def encode(self, text: str, *, add_special_tokens: bool) -> NDArray[np.int32]:
        """Return the token ids of `text`, int32 [n].

        Raises InvalidValue for a token of the tokenizer that the model has no embedding for.
        """
        return self._checked(self.tokenizer.encode(text, add_special_tokens))

    def encode_pair(self, first: str, second: str) -> NDArray[np.int32]:
        """Return the token ids of two texts that the model reads at once. Raises as `encode`."""
        return self._checked(self.tokenizer.encode_pair(first, second))

    def _checked(self, ids: Sequence[int]) -> NDArray[np.int32]:
        tokens = np.array(ids, dtype=np.int32)
        if tokens.size and tokens.max() >= self.served.vocab_size:
            raise InvalidValue(
                f"the text holds token {tokens.max()}, outside the model's vocabulary of "
                f"{self.served.vocab_size}"
            )
        return tokens

    def check_length(self, text: str, param: str) -> None:
        """Raise ContextLengthExceeded if `text` cannot fit the context, without tokenising it.

        Tokenising 32 MiB takes gigabytes and half a minute.
        """
        if len(text) > self._most_chars:
            raise ContextLengthExceeded(
                f"the context of {self.served.name} is {self.served.max_model_len} tokens, too "
                f"few for {len(text)} characters",
                param,
            )

    def render(
        self,
        body: ChatBody | TokenizeBody,
        messages: Sequence[Mapping[str, Any]],
        asked: AskedTools | None,
    ) -> str:
        """Return the chat prompt; waits on this thread.

        Raises InvalidValue if the model has no template or it fails, or has no format for tools
        that are there, UnsupportedParameter for a reasoning_effort that the template does not read,
        ContextLengthExceeded as `check_length`, ChatTemplateLimit.
        """
        template = self._template()
        return template.render(*self._told(body, messages, asked, template))

    async def render_async(
        self,
        body: ChatBody | TokenizeBody,
        messages: Sequence[Mapping[str, Any]],
        asked: AskedTools | None,
    ) -> str:
        """As `render`, without holding up the event loop."""
        template = self._template()
        return await template.render_async(*self._told(body, messages, asked, template))

    def tool_format(self, param: str) -> ToolFormat:
        """Return how the model writes tool calls. Raises InvalidValue if it cannot."""
        if self.tools.format is None:
            message = f"model {self.served.name} has no tool format: {self.tools.refusal}"
            raise InvalidValue(message, param)
        return self.tools.format

    def reasoning_end(self, end: PromptEnd) -> tuple[int, ...]:
        """Return the tokens after which the answer begins, empty where no reasoning is expected.

        end: where the prompt leaves the model. Raises InvalidValue where they cannot be told.
        """
        tags = self.tags
        if end is PromptEnd.AFTER or (tags is None and not self.has_channels):
            return ()
        if self.has_channels:
            return self._answer_begin()
        assert tags is not None
        if end is PromptEnd.BEFORE and not self._usually_thinks(tags):
            return ()
        token = self.tokenizer.token_id(tags.end)
        if token is None:
            raise InvalidValue(
                f"{tags.end} is no token of {self.served.name}, so nothing tells where an output "
                "that must match a grammar begins; switch thinking off, or set "
                "models[].reasoning to none"
            )
        return (token,)

    def _answer_begin(self) -> tuple[int, ...]:
        """Return the tokens after which the answer begins, in the harmony format."""
        missing = [mark for mark in harmony.MARKS if self.tokenizer.token_id(mark) is None]
        if missing:
            raise InvalidValue(
                f"{missing[0]} is no token of {self.served.name}, so nothing tells where an output "
                "that must match a grammar begins"
            )
        return tuple(self.tokenizer.encode(harmony.ANSWER, False))

    def _usually_thinks(self, tags: ReasoningTags) -> bool:
        """True if a model that may think is expected to."""
        source = "" if self.template is None else self.template.source
        return self.served.reasoning == tags.name or tags.end in source or tags.begin in source

    def _template(self) -> ChatTemplate:
        if self.template is None:
            raise InvalidValue(f"model {self.served.name} has no chat template", "model")
        return self.template

    def _told(
        self,
        body: ChatBody | TokenizeBody,
        messages: Sequence[Mapping[str, Any]],
        asked: AskedTools | None,
        template: ChatTemplate,
    ) -> tuple[Sequence[Mapping[str, Any]], RenderOptions]:
        """Return what the template gets."""
        options = self._options(body, template)
        if asked is not None:
            self.tool_format("tools")
        for i, message in enumerate(messages):
            if message["role"] == "tool" or message.get("tool_calls"):
                self.tool_format(f"messages[{i}]")
        form = self.tools.format
        if form is not None and not form.is_in_template:
            return described(messages, asked), options
        told = with_thinking(messages) if self.has_channels else messages
        return told, replace(options, tools=None if asked is None else asked.shown)

    def _options(self, body: ChatBody | TokenizeBody, template: ChatTemplate) -> RenderOptions:
        kwargs = dict(body.chat_template_kwargs or {})
        if isinstance(body, ChatBody) and body.reasoning_effort is not None:
            kwargs.update(self._effort(body.reasoning_effort, kwargs, template))
        to_continue = bool(body.continue_final_message)
        opens_turn = body.add_generation_prompt
        return RenderOptions(
            add_generation_prompt=(not to_continue) if opens_turn is None else opens_turn,
            continue_final_message=to_continue,
            kwargs=kwargs,
            max_chars=self._most_chars,
        )

    def _effort(
        self, effort: str, kwargs: Mapping[str, Any], template: ChatTemplate
    ) -> Mapping[str, Any]:
        """Return the variables of the template that stand for `reasoning_effort`."""
        name = "reasoning_effort"
        if template.reads(name):
            found: Mapping[str, Any] = {name: effort}
        elif effort == "none" and template.reads("enable_thinking"):
            found = {"enable_thinking": False}
        else:
            message = f"the chat template of {self.served.name} does not read {name} {effort}"
            raise UnsupportedParameter(message, name)
        for each, value in found.items():
            if kwargs.get(each, value) != value:
                message = f"{name} and chat_template_kwargs.{each} contradict each other"
                raise InvalidValue(message, name)
        return found

    @property
    def _most_chars(self) -> int:
        """Characters beyond which any text has more tokens than the context."""
        return self.served.max_model_len * self.tokenizer.longest


class ModelTexts:
    """The `ModelText` of each served model by name; empty until the models are known."""

    def __init__(self, texts: Iterable[ModelText] = ()) -> None:
        self._by_name = {text.served.name: text for text in texts}
        self._failed_s: dict[ServedModel, float] = {}

    @classmethod
    def load(cls, models: Iterable[ServedModel], pool: RenderPool | None = None) -> "ModelTexts":
        """Read tokenizers and templates. Raises LoadError naming the file at fault.

        pool: where templates are rendered, None for the pool of this process.
        """
        texts: dict[str, ModelText] = {}
        for model in models:
            texts[model.name] = _text_of(model, texts, pool)
        return cls(texts.values())

    async def follow(self, models: Sequence[ServedModel]) -> Sequence[ServedModel]:
        """Make `models` the served ones, in their order; return those that are new or changed.

        Files are read on a thread. A model whose files cannot be read is logged, left out (one
        that is served already stays as it was) and tried again some seconds later.
        """
        served = {text.served for text in self._by_name.values()}
        new = [model for model in models if model not in served and self._may_try(model)]
        if not new and self._by_name.keys() <= {model.name for model in models}:
            return ()
        by_name = dict(self._by_name)
        loaded: list[ModelText] = []
        for model in new:
            text = await asyncio.to_thread(self._try, model, by_name)
            if text is not None:
                by_name[model.name] = text
                loaded.append(text)
        names = [model.name for model in models]
        self._by_name = {name: by_name[name] for name in names if name in by_name}
        return [text.served for text in loaded]

    def _may_try(self, model: ServedModel) -> bool:
        return time.monotonic() - self._failed_s.get(model, -math.inf) > RETRY_S

    def _try(self, model: ServedModel, known: Mapping[str, ModelText]) -> ModelText | None:
        try:
            return _text_of(model, known)
        except LoadError as error:
            logger.error("%s is not served: %s", model.name, error)
            self._failed_s[model] = time.monotonic()
            return None

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[ModelText]:
        return iter(self._by_name.values())

    def offered(self, models: Collection[str] | None) -> dict[str, ModelText]:
        """Return those of `models`, all for None, by name and in the order of all."""
        found = self._by_name
        return found if models is None else {n: text for n, text in found.items() if n in models}

    def find(self, name: str | None, models: Collection[str] | None = None) -> ModelText:
        """Return the model called `name`; None means the only one, adapters aside.

        models: those that the caller may use, None for all; the others seem not to exist. Raises
        ModelNotFound, MissingParameter for None if there are several, NotReady before the models
        are known.
        """
        if not self._by_name:
            raise NotReady("the server does not know its models yet", retry_after_s=2)
        offered = self.offered(models)
        known = ", ".join(offered)
        if name is None:
            own = [text for text in offered.values() if not text.served.base] or [*offered.values()]
            if len(own) == 1:
                return own[0]
            raise MissingParameter(f"missing required field model; served: {known}", "model")
        text = offered.get(name)
        if text is None:
            message = f"model {clip(name)} is not served here; served: {known}"
            raise ModelNotFound(message, "model")
        return text


def _text_of(
    model: ServedModel, known: Mapping[str, ModelText], pool: RenderPool | None = None
) -> ModelText:
    """Return the text of a model; that of an adapter is its base's. Raises LoadError.

    known: by name, those that are there already.
    """
    base = known.get(model.base)
    if base is not None and base.served == replace(model, name=model.base, base="", loaded=None):
        return replace(base, served=model)
    return _load(model, pool)


def _load(model: ServedModel, pool: RenderPool | None = None) -> ModelText:
    tokenizer = Tokenizer.load(model.path)
    template = ChatTemplate.load(model.path, pool)
    source = "" if template is None else template.source
    tools = tools_of(model.tool_format, source)
    tags = tags_of(model.reasoning, source, lambda text: tokenizer.token_id(text) is not None)
    form = tools.format
    has_channels = tags is HARMONY if form is None else form.has_channels
    if tags is HARMONY and not has_channels:
        tags = None  # calls in another format are looked for in all of the output
    images = read_image_rules(Path(model.path)) if model.takes_images else None
    return ModelText(model, tokenizer, template, tools, tags, has_channels, images)


async def off_loop(work: Callable[[], T], num_chars: int, inline_chars: int) -> T:
    """Return `work()`, run on a thread if `num_chars` of text would hold up the event loop."""
    if num_chars <= inline_chars:
        return work()
    return await asyncio.to_thread(work)
