"""Reads the text of an output as it arrives: each reading step yields until there is enough."""

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from muxcluster.text.tools.json_scanner import JsonScanner

T = TypeVar("T")
Steps = Generator[None, None, T]  # yields where it needs more text, returns what it has read

MOST_NAME_CHARS = 256  # beyond them no mark follows a name

_SPACES = re.compile(r"\s*")
_NAME = re.compile(r"[A-Za-z0-9_.-]*")


class Malformed(Exception):
    """The text cannot be a call from `Reader.position` on, or it has ended within one."""


class Reader:
    """Text and the position up to which it was read.

    What is read depends on the text alone, not on how it was cut. is_over: no more text comes.
    """

    def __init__(self) -> None:
        self.text = ""
        self.position = 0
        self.is_over = False

    def forget(self) -> None:
        """Drop the text that was read."""
        self.text = self.text[self.position :]
        self.position = 0

    def wait(self) -> Steps[None]:
        """Wait for more text. Raises Malformed if none comes."""
        if self.is_over:
            raise Malformed
        yield

    def spaces(self) -> Steps[None]:
        """Skip white space."""
        while True:
            match = _SPACES.match(self.text, self.position)
            assert match is not None, "the pattern matches nothing, too"
            self.position = match.end()
            if self.position < len(self.text) or self.is_over:
                return
            yield

    def peek(self) -> Steps[str]:
        """Return the next character without taking it, "" at the end."""
        while self.position == len(self.text) and not self.is_over:
            yield
        return self.text[self.position : self.position + 1]

    def take(self, mark: str) -> Steps[bool]:
        """Skip `mark` and return True if it follows."""
        while True:
            if self.text.startswith(mark, self.position):
                self.position += len(mark)
                return True
            rest = self.text[self.position : self.position + len(mark)]
            if self.is_over or not mark.startswith(rest):
                return False
            yield

    def take_after_spaces(self, mark: str) -> Steps[bool]:
        """As `take`, with white space before the mark; that stays if the mark does not follow."""
        start = self.position
        yield from self.spaces()
        if (yield from self.take(mark)):
            return True
        self.position = start
        return False

    def expect(self, mark: str) -> Steps[None]:
        """Skip white space and `mark`. Raises Malformed if it does not follow."""
        yield from self.spaces()
        if not (yield from self.take(mark)):
            raise Malformed

    def name(self) -> Steps[str]:
        """Return the letters, digits, dots, underscores and dashes that follow."""
        while True:
            match = _NAME.match(self.text, self.position)
            assert match is not None, "the pattern matches nothing, too"
            if match.end() < len(self.text) or self.is_over:
                self.position = match.end()
                return match.group()
            yield

    def until(self, mark: str) -> Steps[str]:
        """Return the text before `mark` and skip both.

        Raises Malformed if the mark is not within MOST_NAME_CHARS.
        """
        while True:
            most = self.position + MOST_NAME_CHARS + len(mark)
            end = self.text.find(mark, self.position, most)
            if end >= 0:
                found = self.text[self.position : end]
                self.position = end + len(mark)
                return found
            if len(self.text) >= most:
                raise Malformed
            yield from self.wait()

    def text_before(self, ends: Sequence[str], on_piece: Callable[[str], None]) -> Steps[None]:
        """Give the text before the first of `ends` to `on_piece`, as it arrives, and skip both.

        Raises Malformed if none of them comes.
        """
        while True:
            at, mark = self.find(ends)
            piece = self.text[self.position : at]
            self.position = at + len(mark or "")
            if piece:
                on_piece(piece)
            if mark is not None:
                return
            yield from self.wait()

    def json(self, on_piece: Callable[[str], None] | None = None) -> Steps[str]:
        """Return the text of the JSON value that follows.

        on_piece: gets the text in pieces as it arrives. Raises Malformed.
        """
        scanner, start = JsonScanner(), self.position
        while True:
            end = scanner.scan(self.text, self.position)
            piece, self.position = self.text[self.position : end], end
            if piece and on_piece is not None:
                on_piece(piece)
            if scanner.is_wrong:
                raise Malformed
            if scanner.is_complete:
                return self.text[start:end]
            yield from self.wait()

    def find(self, marks: Sequence[str]) -> tuple[int, str | None]:
        """Return where the first of `marks` begins, and which it is.

        Without one: where the text begins that may become one, or the end of the text.
        """
        # most pieces of text have none of these characters
        if all(self.text.find(mark[0], self.position) < 0 for mark in marks):
            return len(self.text), None
        found = [(at, mark) for mark in marks if (at := self.text.find(mark, self.position)) >= 0]
        if found:
            return min(found)
        end = len(self.text)
        if self.is_over:
            return end, None
        longest = max(map(len, marks))
        for at in range(max(self.position, end - longest + 1), end):
            if any(mark.startswith(self.text[at:]) for mark in marks):
                return at, None
        return end, None
