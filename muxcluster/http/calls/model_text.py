"""Tokenizer, chat template and limits of each served model."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
)
from muxcluster.core.inputs.clip import clip
from muxcluster.core.served import ServedModel
from muxcluster.text.rendering.pool import RenderPool
from muxcluster.text.schemas import ChatBody, TokenizeBody
from muxcluster.text.template import ChatTemplate, RenderOptions
from muxcluster.text.tokenizer import Tokenizer

T = TypeVar("T")
logger = logging.getLogger(__name__)

RETRY_S = 5.0  # until a model's files are read again after a failure


@dataclass(frozen=True, slots=True)
class ModelText:
    """Turns messages and text of one model into tokens. template: None if it has none."""

    served: ServedModel
    tokenizer: Tokenizer
    template: ChatTemplate | None

    def encode(self, text: str, *, add_special_tokens: bool) -> NDArray[np.int32]:
        """Return the token ids of `text`, int32 [n].

        Raises InvalidValue for a token of the tokenizer that the model has no embedding for.
        """
        tokens = np.array(self.tokenizer.encode(text, add_special_tokens), dtype=np.int32)
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

    def render(self, body: ChatBody | TokenizeBody, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the chat prompt; waits on this thread.

        Raises InvalidValue if the model has no template or it fails, ContextLengthExceeded as
        `check_length`, ChatTemplateLimit.
        """
        return self._template().render(messages, self._options(body))

    async def render_async(
        self, body: ChatBody | TokenizeBody, messages: Sequence[Mapping[str, Any]]
    ) -> str:
        """As `render`, without holding up the event loop."""
        return await self._template().render_async(messages, self._options(body))

    def _template(self) -> ChatTemplate:
        if self.template is None:
            raise InvalidValue(f"model {self.served.name} has no chat template", "model")
        return self.template

    def _options(self, body: ChatBody | TokenizeBody) -> RenderOptions:
        to_continue = bool(body.continue_final_message)
        opens_turn = body.add_generation_prompt
        return RenderOptions(
            add_generation_prompt=(not to_continue) if opens_turn is None else opens_turn,
            continue_final_message=to_continue,
            kwargs=body.chat_template_kwargs or {},
            max_chars=self._most_chars,
        )

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
        return cls(_load(model, pool) for model in models)

    async def follow(self, models: Sequence[ServedModel]) -> Sequence[ServedModel]:
        """Make `models` the served ones, in their order; return those that are new or changed.

        Files are read on a thread. A model whose files cannot be read is logged, left out (one
        that is served already stays as it was) and tried again some seconds later.
        """
        served = {text.served for text in self._by_name.values()}
        new = [model for model in models if model not in served and self._may_try(model)]
        if not new and self._by_name.keys() <= {model.name for model in models}:
            return ()
        loaded = [text for model in new if (text := await asyncio.to_thread(self._try, model))]
        by_name = {**self._by_name, **{text.served.name: text for text in loaded}}
        names = [model.name for model in models]
        self._by_name = {name: by_name[name] for name in names if name in by_name}
        return [text.served for text in loaded]

    def _may_try(self, model: ServedModel) -> bool:
        return time.monotonic() - self._failed_s.get(model, -math.inf) > RETRY_S

    def _try(self, model: ServedModel) -> ModelText | None:
        try:
            return _load(model)
        except LoadError as error:
            logger.error("%s is not served: %s", model.name, error)
            self._failed_s[model] = time.monotonic()
            return None

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[ModelText]:
        return iter(self._by_name.values())

    def find(self, name: str | None) -> ModelText:
        """Return the model called `name`; None means the only one.

        Raises ModelNotFound, MissingParameter for None if there are several, NotReady before the
        models are known.
        """
        if not self._by_name:
            raise NotReady("the server does not know its models yet", retry_after_s=2)
        if name is None and len(self._by_name) == 1:
            return next(iter(self._by_name.values()))
        known = ", ".join(self._by_name)
        if name is None:
            raise MissingParameter(f"missing required field model; served: {known}", "model")
        text = self._by_name.get(name)
        if text is None:
            message = f"model {clip(name)} is not served here; served: {known}"
            raise ModelNotFound(message, "model")
        return text


def _load(model: ServedModel, pool: RenderPool | None = None) -> ModelText:
    return ModelText(model, Tokenizer.load(model.path), ChatTemplate.load(model.path, pool))


async def off_loop(work: Callable[[], T], num_chars: int, inline_chars: int) -> T:
    """Return `work()`, run on a thread if `num_chars` of text would hold up the event loop."""
    if num_chars <= inline_chars:
        return work()
    return await asyncio.to_thread(work)
