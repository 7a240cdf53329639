"""Chat templates: messages to one prompt, rendered in a sandbox as transformers does."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jinja2 import Template, TemplateError

from muxcluster.core.errors import InvalidValue, LoadError
from muxcluster.text.directory import special_tokens, tokenizer_config
from muxcluster.text.jinja import chat_environment

# what a template may raise on messages it was not written for, beside jinja2's own errors
_RENDER_ERRORS = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RecursionError,
)
_RESERVED = ("messages", "add_generation_prompt", "continue_final_message")
# the space after the mark shows whether the template strips the message
_MARK = "MUXCLUSTERFINALMESSAGEENDSHERE"
_NO_KWARGS: Mapping[str, Any] = MappingProxyType({})


class ChatTemplate:
    """One model's template with its special tokens (`bos_token`, `eos_token`, ...) as variables."""

    def __init__(self, template: Template, variables: Mapping[str, str]) -> None:
        self._template = template
        self._variables = dict(variables)

    @classmethod
    def load(cls, path: Path | str) -> "ChatTemplate | None":
        """The template of directory `path`, None where it has none.

        chat_template.jinja comes first, then `chat_template` of tokenizer_config.json (a string,
        or a list of named ones of which "default" is taken). Raises LoadError naming the file.
        """
        directory = Path(path)
        file, source = _find(directory)
        if source is None:
            return None
        try:
            template = chat_environment().from_string(source)
        except TemplateError as error:
            raise LoadError(file, f"the chat template is not valid jinja: {error}") from error
        return cls(template, special_tokens(directory))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] = _NO_KWARGS,
    ) -> str:
        """The prompt. kwargs: more variables, such as `enable_thinking`.

        continue_final_message: the prompt ends where the last message's text ends, so that the
        model goes on with it. Raises InvalidValue naming the field at fault.
        """
        for name in _RESERVED:
            if name in kwargs:
                raise InvalidValue(f"{name} cannot be set here", "chat_template_kwargs")
        if not continue_final_message:
            return self._render(messages, add_generation_prompt, kwargs)
        if add_generation_prompt:
            raise InvalidValue(
                "continue_final_message and add_generation_prompt exclude each other",
                "continue_final_message",
            )
        return _cut(self._render(_marked(messages), False, kwargs))

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        kwargs: Mapping[str, Any],
    ) -> str:
        variables = {"tools": None, "documents": None, **self._variables, **kwargs}
        try:
            return self._template.render(
                **variables,
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
            )
        except _RENDER_ERRORS as error:
            raise InvalidValue(f"the chat template refused: {error}", "messages") from error


def _find(directory: Path) -> tuple[Path, str | None]:
    """(file, template source) of the directory's template."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        try:
            return file, file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise LoadError(file, f"not readable: {error}") from error
    file = directory / "tokenizer_config.json"
    template = tokenizer_config(directory).get("chat_template")
    if isinstance(template, list):
        entries = [entry for entry in template if isinstance(entry, dict)]
        named = {entry.get("name"): entry.get("template") for entry in entries}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise LoadError(file, "chat_template is neither text nor a list of named templates")
    return file, template


def _marked(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with a mark at the end of the last one's text."""
    marked = [dict(message) for message in messages]
    content = marked[-1].get("content") if marked else None
    if isinstance(content, str):
        marked[-1]["content"] = f"{content}{_MARK} "
        return marked
    parts = [dict(part) for part in content] if isinstance(content, Sequence) else []
    for part in reversed(parts):
        if isinstance(part.get("text"), str):
            part["text"] += f"{_MARK} "
            marked[-1]["content"] = parts
            return marked
    raise InvalidValue("the final message has no text to continue", "messages")


def _cut(prompt: str) -> str:
    """The prompt up to the mark; a template that strips messages strips the text before it too."""
    end = prompt.rfind(_MARK)
    if end < 0:
        raise InvalidValue("the chat template drops the final message's text", "messages")
    keeps_spaces = prompt.startswith(f"{_MARK} ", end)
    return prompt[:end] if keeps_spaces else prompt[:end].rstrip()
