"""Chat templates: render messages to a prompt in a sandbox, as transformers does."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muxcluster.core.errors import ChatTemplateLimit, InvalidValue, LoadError
from muxcluster.core.inputs.tokenizer_config import special_tokens, tokenizer_config
from muxcluster.text.rendering.frames import Job, packed
from muxcluster.text.rendering.pool import RenderPool, shared_pool

_RESERVED = ("messages", "add_generation_prompt", "continue_final_message")
# the space after the mark shows whether the template strips the message
_MARK = "MUXCLUSTERFINALMESSAGEENDSHERE"


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """How messages are rendered. kwargs: more variables, such as `enable_thinking`.

    continue_final_message: the prompt ends where the last message's text ends, so that the model
    goes on with it. max_chars: longest prompt.
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_chars: int | None = None


_DEFAULTS = RenderOptions()


class ChatTemplate:
    """One model's template with its special tokens (`bos_token`, `eos_token`, ...) as variables.

    It is compiled and rendered in the processes of `pool`.
    """

    def __init__(self, source: str, variables: Mapping[str, str], pool: RenderPool) -> None:
        """Raises InvalidValue if `source` is not valid jinja, ChatTemplateLimit."""
        self._source = source
        self._key = hashlib.sha256(source.encode(errors="surrogatepass")).hexdigest()
        self._variables = dict(variables)
        self._pool = pool
        pool.render(Job(self._key, source))

    @classmethod
    def load(cls, path: Path | str, pool: RenderPool | None = None) -> "ChatTemplate | None":
        """Return the template of directory `path`, None if it has none.

        chat_template.jinja comes first, then `chat_template` of tokenizer_config.json (a string,
        or a list of named ones of which "default" is taken). pool: None for the one of this
        process. Raises LoadError naming the file.
        """
        directory = Path(path)
        file, source = _find(directory)
        if source is None:
            return None
        variables = special_tokens(directory)
        try:
            return cls(source, variables, pool or shared_pool())
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
            "tools": None,
            "documents": None,
            **self._variables,
            **options.kwargs,
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": options.add_generation_prompt,
        }
        try:
            data = packed(variables)
        except ValueError as error:
            raise InvalidValue(f"not plain JSON values: {error}", "messages") from None
        return Job(self._key, self._source, data, max_chars)


def _find(directory: Path) -> tuple[Path, str | None]:
    """Return (file, template source) of the directory's template."""
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
