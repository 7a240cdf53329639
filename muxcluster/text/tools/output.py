"""Divides the text of an output into content, reasoning and tool calls, as it arrives."""

import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from muxcluster.text.reasoning import PromptEnd, ReasoningTags
from muxcluster.text.tools import harmony
from muxcluster.text.tools.calls import Calls, Enough
from muxcluster.text.tools.formats import ToolFormat
from muxcluster.text.tools.parts import Content, Part, Reasoning
from muxcluster.text.tools.reader import Malformed, Reader, Steps

_ID_CHARS = string.ascii_letters + string.digits
ID_LENGTH = 9  # of ids that Mistral's templates take


def new_call_id() -> str:
    """Return a random id that every template takes."""
    return "".join(secrets.choice(_ID_CHARS) for _ in range(ID_LENGTH))


@dataclass(frozen=True, slots=True)
class OutputRules:
    """How the outputs of one call are divided.

    tags: None if the model does not think, or its reasoning is to stay in the content. prompt_end:
    where the prompt leaves the model. format: None if no tool may be called. names: of the tools
    that may be. kept_tokens: ids of special tokens that are marks of `tags` or `format`. texts: by
    tool, the arguments that are texts, for formats that do not quote them. has_channels: outputs
    are messages in the harmony format.
    """

    tags: ReasoningTags | None = None
    prompt_end: PromptEnd = PromptEnd.BEFORE
    format: ToolFormat | None = None
    names: frozenset[str] = frozenset()
    may_repeat: bool = True  # several calls in one output
    shows_reasoning: bool = True
    kept_tokens: frozenset[int] = frozenset()
    texts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    has_channels: bool = False

    @property
    def has_effect(self) -> bool:
        """False if every output is content as it is."""
        may_think = self.tags is not None and self.prompt_end is not PromptEnd.AFTER
        return may_think or self.format is not None or self.has_channels


class OutputParser:
    """Takes the text of one output and returns its parts.

    White space around reasoning and calls is dropped, unless content follows it after a call. What
    is no call of a tool of the request, or not written as the format says, is content. Text cut in
    other places has the same parts, apart from where they are cut.
    """

    def __init__(self, rules: OutputRules, make_id: Callable[[], str] = new_call_id) -> None:
        self._rules = rules
        self._reader = Reader()
        self._parts: list[Part] = []
        self._gap = ""
        self._gave_reasoning: bool | None = None  # the last text was reasoning, or content
        self._joint = ""  # between the last text and the next
        self._calls = Calls(
            self._reader,
            rules.names,
            self._give,
            make_id,
            may_repeat=rules.may_repeat,
            texts=rules.texts,
        )
        self.is_reasoning = False  # what was pushed last ends within the reasoning
        self.is_over = False  # a call is complete, and no further one is wanted
        self._steps = self._read()
        next(self._steps)

    @property
    def num_calls(self) -> int:
        """Complete calls so far."""
        return self._calls.num_complete

    def push(self, text: str) -> list[Part]:
        """Return the parts that `text` adds; none once it `is_over`."""
        if text and not self.is_over:
            self._reader.text += text
            next(self._steps, None)
        return self._taken()

    def finish(self) -> list[Part]:
        """Return the parts of the text held back so far: the output has ended."""
        if not self.is_over:
            self._reader.is_over = True
            next(self._steps, None)
        return self._taken()

    def _taken(self) -> list[Part]:
        taken, self._parts = self._parts, []
        return taken

    def _give(self, part: Part) -> None:
        self._parts.append(part)

    def _read(self) -> Steps[None]:
        rules = self._rules
        try:
            if rules.has_channels:
                yield from self._messages()
                return
            if rules.tags is not None:
                yield from self._reasoning(rules.tags)
            if rules.format is None:
                yield from self._until((), self._as_content)
            else:
                yield from self._answer(rules.format)
        except Enough:
            self.is_over = True

    def _reasoning(self, tags: ReasoningTags) -> Steps[None]:
        """Read the reasoning, if there is any, and the white space after it."""
        reader = self._reader
        if self._rules.prompt_end is PromptEnd.AFTER:
            return
        is_open = self._rules.prompt_end is PromptEnd.WITHIN
        if not (is_open or (yield from reader.take_after_spaces(tags.begin))):
            return
        self.is_reasoning = True
        yield from reader.spaces()
        yield from self._until((tags.end,), self._as_reasoning)
        self.is_reasoning = False
        self._gap = ""
        yield from reader.spaces()

    def _messages(self) -> Steps[None]:
        """Read messages with channels. What is not written like one is content.

        The texts of several messages of one kind have a line break between them.
        """
        reader, end = self._reader, self._rules.prompt_end
        channel = {PromptEnd.WITHIN: harmony.ANALYSIS, PromptEnd.AFTER: harmony.FINAL}.get(end)
        head = None if channel is None else harmony.Header(channel)
        while (mark := (yield from self._message(head))) is not None:
            head = None
            if mark != harmony.START:
                yield from reader.take(harmony.START)
            yield from reader.take(harmony.AUTHOR)
        if self._calls.num_complete == 0:
            self._give_gap()

    def _message(self, head: harmony.Header | None) -> Steps[str | None]:
        """Read a message; return the mark that ends it, None at the end of the output.

        head: its header, if the prompt has that.
        """
        reader, form = self._reader, self._rules.format
        start = reader.position
        if head is None:
            head = yield from harmony.header(reader)
        if head is None or head.recipient:
            reader.position = start
            if head is not None and form is not None:
                yield from self._read_calls(form, "")
        elif head.channel == harmony.ANALYSIS and self._rules.tags is not None:
            self._begin_kind(is_reasoning=True)
            yield from reader.spaces()
            mark = yield from self._until(harmony.ENDS, self._as_reasoning)
            self.is_reasoning = False
            return mark
        self._begin_kind(is_reasoning=False)
        return (yield from self._until(harmony.ENDS, self._as_content))

    def _begin_kind(self, *, is_reasoning: bool) -> None:
        """Begin with reasoning, or with content."""
        self.is_reasoning = is_reasoning
        self._gap = ""
        self._joint = "\n" if is_reasoning is self._gave_reasoning else ""

    def _answer(self, form: ToolFormat) -> Steps[None]:
        """Read content and calls."""
        reader = self._reader
        if form.is_bare:
            start = reader.position
            yield from reader.spaces()
            first = yield from reader.peek()
            reader.position = start
            if first and first in form.bare_starts:
                yield from self._read_calls(form, "")
        while (mark := (yield from self._until(form.openers, self._as_content))) is not None:
            yield from self._read_calls(form, mark)
        if self._calls.num_complete == 0:
            self._give_gap()

    def _read_calls(self, form: ToolFormat, mark: str) -> Steps[None]:
        """Read the calls after `mark`; what is no call becomes content."""
        reader, calls = self._reader, self._calls
        calls.start = start = reader.position - len(mark)
        try:
            yield from form.read(reader, calls)
        except Malformed:
            if calls.broken():
                return
            reader.position = calls.start
            if calls.start == start:
                reader.position += len(mark)
                self._as_content(mark)

    def _until(self, marks: Sequence[str], give: Callable[[str], None]) -> Steps[str | None]:
        """Give the text before the first of `marks`, and skip and return that; None at the end."""
        reader = self._reader
        while True:
            at, mark = reader.find(marks)
            give(reader.text[reader.position : at])
            reader.position = at + len(mark or "")
            if mark is not None or reader.is_over:
                return mark
            reader.forget()
            yield

    def _as_reasoning(self, text: str) -> None:
        body = self._without_gap(text)
        if body:
            self._gave_reasoning = True
            if self._rules.shows_reasoning:
                self._parts.append(Reasoning(self._joint + body))
            self._joint = ""

    def _as_content(self, text: str) -> None:
        is_all = self._rules.format is None and not self._rules.has_channels
        body = text if is_all else self._without_gap(text)
        if body:
            self._gave_reasoning = False
            self._parts.append(Content(self._joint + body))
            self._joint = ""

    def _without_gap(self, text: str) -> str:
        """Return the text without the white space at its end, which waits for what follows it."""
        text = self._gap + text
        body = text.rstrip()
        self._gap = text[len(body) :]
        return body

    def _give_gap(self) -> None:
        if self._gap:
            self._parts.append(Content(self._gap))
