"""What the text of an output consists of, in the order in which it was written."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text that the model wrote before its answer, without its tags."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call of a tool of the request. index: among the calls of this output."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """The next characters of a call's arguments, which are a JSON object once it is complete."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallBroken:
    """A call that had begun is not one. raw: all its text, as the model wrote it.

    at_end: the output ended within it. Otherwise the text goes on with `Content`.
    """

    index: int
    raw: str
    at_end: bool


Part = Content | Reasoning | CallBegun | Arguments | CallBroken
