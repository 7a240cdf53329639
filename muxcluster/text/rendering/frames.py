"""Messages between the server and its render processes."""

import enum
import marshal
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LENGTH = struct.Struct(">Q")  # before a job
HEAD = struct.Struct(">BQ")  # before a reply: its outcome, and how many bytes of text follow


@dataclass(frozen=True, slots=True)
class Job:
    """A template to render with `variables`, or only to compile if these are None.

    key: names the template in a process that has compiled it. variables: `packed`. max_chars: of
    the prompt.
    """

    key: str
    source: str
    variables: bytes | None = None
    max_chars: int | None = None

    def frame(self, *, with_source: bool) -> bytes:
        """Return the job as bytes."""
        source = self.source if with_source else None
        data = marshal.dumps((self.key, source, self.variables, self.max_chars))
        return LENGTH.pack(len(data)) + data


def packed(variables: Mapping[str, Any]) -> bytes:
    """Return plain JSON values as bytes. Raises ValueError for others, and for too deep ones.

    Uses marshal, which takes no longer than a copy; both ends run the same interpreter.
    """
    return marshal.dumps(dict(variables))


@dataclass(frozen=True, slots=True)
class ReceivedJob:
    """A `Job` in the render process. source: None if it was sent before."""

    key: str
    source: str | None
    variables: dict[str, Any] | None
    max_chars: int | None

    @classmethod
    def of(cls, data: bytes) -> "ReceivedJob":
        """Return the job of a frame without its length."""
        key, source, variables, max_chars = marshal.loads(data)
        return cls(key, source, None if variables is None else marshal.loads(variables), max_chars)


class Outcome(enum.IntEnum):
    """How a job ended. A process that is out of time sends nothing and is killed."""

    RENDERED = 0  # text: the prompt
    REFUSED = 1  # text: what the template, or the compiler, says
    TOO_LONG = 2  # text: how many characters the prompt has
    NO_MEMORY = 3  # No text. The process ends.


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a job. Not marshalled, as a template that broke out of its sandbox could have
    written it."""

    outcome: Outcome
    text: str = ""

    def frame(self) -> bytes:
        """Return the reply as bytes. Raises UnicodeEncodeError for text with lone surrogates."""
        data = self.text.encode()
        return HEAD.pack(self.outcome, len(data)) + data
