"""A served model's text side: its tokenizer, its chat template and its limits."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.errors import (
    ContextLengthExceeded,
    InvalidValue,
    MissingParameter,
    ModelNotFound,
)
from muxcluster.core.served import ServedModel
from muxcluster.text.schemas import ChatBody, TokenizeBody
from muxcluster.text.template import ChatTemplate
from muxcluster.text.tokenizer import Tokenizer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ModelText:
    """Everything the edge knows about one model. template: None where it has none."""

    served: ServedModel
    tokenizer: Tokenizer
    template: ChatTemplate | None

    def encode(self, text: str, *, add_special_tokens: bool) -> NDArray[np.int32]:
        """Token ids of `text`, int32 [n].

        Raises InvalidValue where the tokenizer knows a token that the model has no embedding for.
        """
        tokens = np.array(self.tokenizer.encode(text, add_special_tokens), dtype=np.int32)
        if tokens.size and tokens.max() >= self.served.vocab_size:
            raise InvalidValue(
                f"the text holds token {tokens.max()}, outside the model's vocabulary of "
                f"{self.served.vocab_size}"
            )
        return tokens

    def check_length(self, text: str, param: str) -> None:
        """Raises ContextLengthExceeded where `text` cannot fit the context, without tokenising it.

        Tokenising 32 MiB takes gigabytes and half a minute.
        """
        if len(text) > self.served.max_model_len * self.tokenizer.longest:
            raise ContextLengthExceeded(
                f"the context of {self.served.name} is {self.served.max_model_len} tokens, too "
                f"few for {len(text)} characters",
                param,
            )

    def render(self, body: ChatBody | TokenizeBody, messages: Sequence[Mapping[str, Any]]) -> str:
        """The chat prompt. Raises InvalidValue where the model has no template or it fails."""
        if self.template is None:
            raise InvalidValue(f"model {self.served.name} has no chat template", "model")
        to_continue = bool(body.continue_final_message)
        opens_turn = body.add_generation_prompt
        return self.template.render(
            messages,
            add_generation_prompt=(not to_continue) if opens_turn is None else opens_turn,
            continue_final_message=to_continue,
            kwargs=body.chat_template_kwargs or {},
        )


class ModelTexts:
    """The text sides of all served models, by name."""

    def __init__(self, texts: Iterable[ModelText]) -> None:
        self._by_name = {text.served.name: text for text in texts}

    @classmethod
    def load(cls, models: Iterable[ServedModel]) -> "ModelTexts":
        """Reads tokenizers and templates. Raises LoadError naming the file at fault."""
        return cls(
            ModelText(model, Tokenizer.load(model.path), ChatTemplate.load(model.path))
            for model in models
        )

    def __iter__(self) -> Iterator[ModelText]:
        return iter(self._by_name.values())

    def find(self, name: str | None) -> ModelText:
        """The model called `name`; None means the only one.

        Raises ModelNotFound, or MissingParameter for None where there are several.
        """
        if name is None and len(self._by_name) == 1:
            return next(iter(self._by_name.values()))
        known = ", ".join(self._by_name)
        if name is None:
            raise MissingParameter(f"missing required field model; served: {known}", "model")
        text = self._by_name.get(name)
        if text is None:
            raise ModelNotFound(f"model {name!r} is not served here; served: {known}", "model")
        return text


async def off_loop(work: Callable[[], T], num_chars: int, inline_chars: int) -> T:
    """`work()`, on a thread where `num_chars` of text would hold up the event loop."""
    if num_chars <= inline_chars:
        return work()
    return await asyncio.to_thread(work)
