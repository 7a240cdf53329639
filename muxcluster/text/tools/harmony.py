"""OpenAI's harmony format, in which gpt-oss models write: messages with channels.

A message has a header, up to `<|message|>`, and a text, up to `<|end|>`, or `<|call|>` behind a
call, or the end of the output. The header names the channel: `analysis` is the reasoning, `final`
the answer, `commentary` a call or what is said before one. A call also has ` to=functions.NAME`,
before the channel or behind its name. Between messages stands `<|start|>assistant`, which the
prompt has before the first. openai-harmony, which reads the same from tokens, downloads its own
vocabulary; a model's own special tokens are enough.
"""

import re
from dataclasses import dataclass

from muxcluster.text.tools.calls import Calls, arguments
from muxcluster.text.tools.reader import Malformed, Reader, Steps

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
CONSTRAIN, CALL, END, RETURN = "<|constrain|>", "<|call|>", "<|end|>", "<|return|>"
MARKS = (START, CHANNEL, MESSAGE, CONSTRAIN, CALL, END, RETURN)
ENDS = (END, CALL, RETURN, START)  # of a message's text
AUTHOR = "assistant"
ANALYSIS, COMMENTARY, FINAL = "analysis", "commentary", "final"
NAMESPACE = "functions."  # of the request's tools among all recipients
TO = " to="
ANSWER = CHANNEL + FINAL + MESSAGE  # the header of one
# headers of what may come before a call or an answer: reasoning, and what is said before a call
EARLIER = (CHANNEL + ANALYSIS + MESSAGE, CHANNEL + COMMENTARY + MESSAGE)

_RECIPIENT = re.compile(r"(?:^|\s)to=([^\s<]+)")
_CHANNEL_NAME = re.compile(re.escape(CHANNEL) + r"(\w+)")


@dataclass(frozen=True, slots=True)
class Header:
    """What a message's header says. channel and recipient: "" where it names none."""

    channel: str = ""
    recipient: str = ""

    @property
    def tool(self) -> str | None:
        """The function that is called; None if none is."""
        is_call = self.recipient.startswith(NAMESPACE)
        return self.recipient.removeprefix(NAMESPACE) if is_call else None


def call_headers(name: str) -> tuple[str, str]:
    """Return the header of a call as chat templates write it, and as models do most of the time."""
    to = f"{TO}{NAMESPACE}{name}"
    return (
        f"{to}{CHANNEL}{COMMENTARY} json{MESSAGE}",
        f"{CHANNEL}{COMMENTARY}{to} {CONSTRAIN}json{MESSAGE}",
    )


def is_template(source: str) -> bool:
    """Return True if a chat template writes this format."""
    return all(mark in source for mark in (START, CHANNEL, MESSAGE))


def header(reader: Reader) -> Steps[Header | None]:
    """Read a header; without one return None and read nothing.

    The beginning of one, with which the output ends, is read as an empty message.
    """
    start = reader.position
    if not ((yield from reader.take(CHANNEL)) or (yield from reader.take(TO + NAMESPACE))):
        return None
    reader.position = start
    try:
        text = yield from reader.until(MESSAGE)
    except Malformed:
        reader.position = len(reader.text) if reader.is_over else start
        return Header() if reader.is_over else None
    channel, recipient = _CHANNEL_NAME.search(text), _RECIPIENT.search(text)
    return Header(channel[1] if channel else "", recipient[1] if recipient else "")


def call(reader: Reader, calls: Calls) -> Steps[None]:
    """Read a message that is a call, from its header on. Raises Malformed, Enough."""
    head = yield from header(reader)
    if head is None or head.tool is None:
        raise Malformed
    yield from arguments(reader, calls, head.tool)
