"""The items of an output in the order in which they were written: texts, reasoning, calls."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from muxcluster.core.events import FinishReason
from muxcluster.http.calls.choice import ChoiceDelta
from muxcluster.text.tools.parts import (
    Arguments,
    CallBegun,
    CallBroken,
    Content,
    Part,
    Reasoning,
)


class ItemKind(StrEnum):
    """What an item is."""

    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


@dataclass(frozen=True, slots=True)
class Item:
    """One item of an output. text: its own, or a call's arguments, which are JSON if it is whole.

    is_whole: False for a call that the output ends within, or that turned out not to be one.
    """

    kind: ItemKind
    text: str = ""
    call_id: str = ""
    name: str = ""
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class Begun:
    """Item `index` begins. item: as far as it is known, without text."""

    index: int
    item: Item


@dataclass(frozen=True, slots=True)
class Grown:
    """Item `index`, of this kind, goes on with `text`."""

    index: int
    kind: ItemKind
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Item `index` has ended."""

    index: int
    item: Item


ItemEvent = Begun | Grown | Ended


@dataclass(slots=True)
class _Draft:
    """An item that may still grow."""

    kind: ItemKind
    pieces: list[str] = field(default_factory=list)
    call_id: str = ""
    name: str = ""
    is_whole: bool = True

    def item(self) -> Item:
        return Item(self.kind, "".join(self.pieces), self.call_id, self.name, self.is_whole)


def parts_of(delta: ChoiceDelta) -> Sequence[Part]:
    """Return the parts that a delta adds."""
    return delta.parts or (Content(delta.text),)


def whole_items(deltas: Sequence[ChoiceDelta], *, keeps_cut_calls: bool) -> list[Item]:
    """Return the items of a whole output.

    A broken call is text. One that the output ended within at its length limit is too, unless
    `keeps_cut_calls`: then it is there as far as it goes.
    """
    is_cut = deltas[-1].finish_reason == FinishReason.LENGTH.value
    drafts: list[_Draft] = []
    for part in (part for delta in deltas for part in parts_of(delta)):
        match part:
            case Content(text):
                _add_text(drafts, ItemKind.TEXT, text)
            case Reasoning(text):
                _add_text(drafts, ItemKind.REASONING, text)
            case CallBegun(_, call_id, name):
                drafts.append(_Draft(ItemKind.CALL, [], call_id, name))
            case Arguments(_, text):
                drafts[-1].pieces.append(text)
            case CallBroken(_, _, at_end) if keeps_cut_calls and at_end and is_cut:
                drafts[-1].is_whole = False
            case CallBroken(_, raw):
                drafts.pop()
                _add_text(drafts, ItemKind.TEXT, raw)
    return [draft.item() for draft in drafts]


def _add_text(drafts: list[_Draft], kind: ItemKind, text: str) -> None:
    if not text:
        return
    if not drafts or drafts[-1].kind is not kind:
        drafts.append(_Draft(kind))
    drafts[-1].pieces.append(text)


class ItemStream:
    """Turns the parts of a streamed output into events of its items, one item at a time.

    A stream cannot take back a call that turns out not to be one: it ends as it is, and what
    follows is text.
    """

    def __init__(self) -> None:
        self.items: list[Item] = []  # those that have ended
        self._open: _Draft | None = None

    def push(self, part: Part) -> Iterator[ItemEvent]:
        """Yield the events of one part."""
        match part:
            case Content(text):
                yield from self._text(ItemKind.TEXT, text)
            case Reasoning(text):
                yield from self._text(ItemKind.REASONING, text)
            case CallBegun(_, call_id, name):
                yield from self._begin(_Draft(ItemKind.CALL, [], call_id, name))
            case Arguments(_, text):
                yield from self._grow(text)
            case CallBroken():
                if self._open is not None:
                    self._open.is_whole = False
                yield from self.finish()

    def finish(self) -> Iterator[ItemEvent]:
        """Yield the end of the open item, if there is one."""
        if self._open is not None:
            item, self._open = self._open.item(), None
            self.items.append(item)
            yield Ended(len(self.items) - 1, item)

    def _text(self, kind: ItemKind, text: str) -> Iterator[ItemEvent]:
        if not text:
            return
        if self._open is None or self._open.kind is not kind:
            yield from self._begin(_Draft(kind))
        yield from self._grow(text)

    def _begin(self, draft: _Draft) -> Iterator[ItemEvent]:
        yield from self.finish()
        self._open = draft
        yield Begun(len(self.items), draft.item())

    def _grow(self, text: str) -> Iterator[ItemEvent]:
        assert self._open is not None, "arguments come after their call has begun"
        self._open.pieces.append(text)
        yield Grown(len(self.items), self._open.kind, text)
