"""Chat templates: render messages to a prompt in a sandbox, as transformers does."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muxcluster.core.errors import ChatTemplateLimit, InvalidValue, LoadError
from muxcluster.core.inputs.tokenizer_config import read_object, special_tokens, tokenizer_config
from muxcluster.text.rendering.frames import Job, packed
from muxcluster.text.rendering.pool import RenderPool, shared_pool

_RESERVED = ("messages", "tools", "add_generation_prompt", "continue_final_message")
# the space after the mark shows whether the template strips the message
_MARK = "MUXCLUSTERFINALMESSAGEENDSHERE"


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """How messages are rendered. kwargs: more variables, such as `enable_thinking`. tools: as
    OpenAI's `tools`, None for none.

    continue_final_message: the prompt ends where the last message's text ends, so that the model
    goes on with it. max_chars: longest prompt.
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] | None = None
    max_chars: int | None = None


_DEFAULTS = RenderOptions()


class ChatTemplate:
    """One model's template with its special tokens (`bos_token`, `eos_token`, ...) as variables.

    It is compiled and rendered in the processes of `pool`.
    """

    def __init__(
        self,
        source: str,
        variables: Mapping[str, str],
        pool: RenderPool,
        source_with_tools: str | None = None,
    ) -> None:
        """source_with_tools: for messages with tools, if they have a template of their own.

        Raises InvalidValue if a source is not valid jinja, ChatTemplateLimit.
        """
        self._plain = _Source.of(source)
        self._with_tools = (
            self._plain if source_with_tools is None else _Source.of(source_with_tools)
        )
        self._variables = dict(variables)
        self._pool = pool
        for each in dict.fromkeys((self._plain, self._with_tools)):
            pool.render(Job(each.key, each.text))

    @property
    def source(self) -> str:
        """The text of the template that gets tools."""
        return self._with_tools.text

    def reads(self, variable: str) -> bool:
        """Return whether the template has a name `variable` in it."""
        return re.search(rf"\b{re.escape(variable)}\b", self._plain.text) is not None

    @classmethod
    def load(cls, path: Path | str, pool: RenderPool | None = None) -> "ChatTemplate | None":
        """Return the template of directory `path`, None if it has none.

        chat_template.jinja comes first, then chat_template.json (older models that take images),
        then `chat_template` of tokenizer_config.json (a string, or a list of named ones of which
        "default" is taken, and "tool_use" for messages with tools). pool: None for the one of this
        process. Raises LoadError naming the file.
        """
        directory = Path(path)
        file, source, with_tools = _find(directory)
        if source is None:
            return None
        variables = special_tokens(directory)
        try:
            return cls(source, variables, pool or shared_pool(), with_tools)
        except InvalidValue as error:
            raise LoadError(file, f"the chat template is not valid jinja: {error}") from error
        except ChatTemplateLimit as error:
            raise LoadError(file, f"{error} to compile") from error

    def render(
        self, messages: Sequence[Mapping[str, Any]], options: RenderOptions = _DEFAULTS
    ) -> str:
        """Return the prompt; waits on this thread.

        Raises InvalidValue naming the field at fault, ContextLengthExceeded over
        `options.max_chars`, ChatTemplateLimit.
        """
        return _cut(self._pool.render(self._job(messages, options)), options)

    async def render_async(
        self, messages: Sequence[Mapping[str, Any]], options: RenderOptions = _DEFAULTS
    ) -> str:
        """As `render`, without holding up the event loop."""
        return _cut(await self._pool.render_async(self._job(messages, options)), options)

    def _job(self, messages: Sequence[Mapping[str, Any]], options: RenderOptions) -> Job:
        for name in _RESERVED:
            if name in options.kwargs:
                raise InvalidValue(f"{name} cannot be set here", "chat_template_kwargs")
        max_chars = options.max_chars
        if options.continue_final_message:
            if options.add_generation_prompt:
                raise InvalidValue(
                    "continue_final_message and add_generation_prompt exclude each other",
                    "continue_final_message",
                )
            messages = _marked(messages)
            max_chars = None if max_chars is None else max_chars + len(_MARK) + 1
        variables = {
            "documents": None,
            **self._variables,
            **options.kwargs,
            "messages": [dict(message) for message in messages],
            "tools": None if options.tools is None else list(options.tools),
            "add_generation_prompt": options.add_generation_prompt,
        }
        try:
            data = packed(variables)
        except ValueError as error:
            raise InvalidValue(f"not plain JSON values: {error}", "messages") from None
        source = self._plain if options.tools is None else self._with_tools
        return Job(source.key, source.text, data, max_chars)


@dataclass(frozen=True, slots=True)
class _Source:
    """The text of a template. key: names it in processes that have compiled it."""

    text: str
    key: str

    @classmethod
    def of(cls, text: str) -> "_Source":
        return cls(text, hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest())


def _find(directory: Path) -> tuple[Path, str | None, str | None]:
    """Return (file, template source, that for messages with tools) of a directory."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        with_tools = directory / "additional_chat_templates" / "tool_use.jinja"
        return file, _read(file), _read(with_tools) if with_tools.is_file() else None
    file = directory / "chat_template.json"
    content = read_object(file)
    if not content:
        file, content = directory / "tokenizer_config.json", tokenizer_config(directory)
    template, with_tools_text = content.get("chat_template"), None
    if isinstance(template, list):
        entries = [entry for entry in template if isinstance(entry, dict)]
        named = {entry.get("name"): entry.get("template") for entry in entries}
        template, with_tools_text = named.get("default"), named.get("tool_use")
    if not isinstance(template, str | None) or not isinstance(with_tools_text, str | None):
        raise LoadError(file, "chat_template is neither text nor a list of named templates")
    return file, template, with_tools_text


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise LoadError(file, f"not readable: {error}") from error


def _marked(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with a mark at the end of the last one's text."""
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


def _cut(prompt: str, options: RenderOptions) -> str:
    """Return the prompt up to the mark, if it has one.

    A template that strips messages strips the text before the mark, too.
    """
    if not options.continue_final_message:
        return prompt
    end = prompt.rfind(_MARK)
    if end < 0:
        raise InvalidValue("the chat template drops the final message's text", "messages")
    keeps_spaces = prompt.startswith(f"{_MARK} ", end)
    return prompt[:end] if keeps_spaces else prompt[:end].rstrip()
