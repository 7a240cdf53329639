"""Finds the end of a JSON value in text that arrives in pieces."""

import re

MAX_DEPTH = 100  # of arguments: clients' JSON readers end at some hundreds

_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_WORD = re.compile(r"[-+.0-9A-Za-z]*")
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_ESCAPED = frozenset('"\\/bfnrt')
_HEX = frozenset("0123456789abcdefABCDEF")
_CLOSES = {"{": "}", "[": "]"}

# what may come next, white space aside
_VALUE, _FIRST_VALUE, _KEY, _FIRST_KEY, _COLON, _NEXT = range(6)


class JsonScanner:
    """Takes the characters of one value, strictly as RFC 8259 has it.

    is_complete: the value has ended. is_wrong: the character where the last scan stopped cannot
    follow.
    """

    def __init__(self) -> None:
        self.is_complete = False
        self.is_wrong = False
        self._open: list[str] = []
        self._expected = _VALUE
        self._is_in_string = False
        self._is_key = False
        self._escape = ""
        self._word = ""

    def scan(self, text: str, start: int) -> int:
        """Take characters of `text` from `start` on; return the index after the last one taken."""
        at = start
        while at < len(text) and not (self.is_complete or self.is_wrong):
            if self._is_in_string:
                at = self._string(text, at)
            elif self._word:
                at = self._scalar(text, at)
            else:
                at += self._structure(text[at])
        return at

    def _structure(self, char: str) -> int:
        """Take a character outside of strings and scalars; return 0 if it cannot follow."""
        if char in " \t\n\r":
            return 1
        if self._expected in (_COLON, _NEXT):
            return self._between(char)
        is_key = self._expected in (_KEY, _FIRST_KEY)
        if char == '"':
            self._is_in_string, self._is_key = True, is_key
        elif (self._expected, char) in ((_FIRST_KEY, "}"), (_FIRST_VALUE, "]")):
            self._close()
        elif not is_key and char in _CLOSES and len(self._open) < MAX_DEPTH:
            self._open.append(char)
            self._expected = _FIRST_KEY if char == "{" else _FIRST_VALUE
        elif not is_key and char in "-0123456789tfn":
            self._word = char
        else:
            self.is_wrong = True
        return 0 if self.is_wrong else 1

    def _between(self, char: str) -> int:
        """Take a character after a key or a value."""
        if self._expected == _COLON and char == ":":
            self._expected = _VALUE
        elif self._expected == _NEXT and char == ",":
            self._expected = _KEY if self._open[-1] == "{" else _VALUE
        elif self._expected == _NEXT and char == _CLOSES[self._open[-1]]:
            self._close()
        else:
            self.is_wrong = True
            return 0
        return 1

    def _close(self) -> None:
        self._open.pop()
        self._end_value()

    def _end_value(self) -> None:
        self._expected = _NEXT
        self.is_complete = not self._open

    def _scalar(self, text: str, at: int) -> int:
        """Take characters of a number, true, false or null; what follows them ends it."""
        match = _WORD.match(text, at)
        assert match is not None, "the pattern matches nothing, too"
        self._word += match.group()
        if match.end() < len(text):
            self.is_wrong = _SCALAR.fullmatch(self._word) is None
            self._word = ""
            self._end_value()
        return match.end()

    def _string(self, text: str, at: int) -> int:
        if self._escape:
            return at + self._escaped(text[at])
        match = _PLAIN.match(text, at)
        assert match is not None, "the pattern matches nothing, too"
        end = match.end()
        if end == len(text):
            return end
        if text[end] == "\\":
            self._escape = "\\"
        elif text[end] == '"':
            self._is_in_string = False
            if self._is_key:
                self._expected = _COLON
            else:
                self._end_value()
        else:
            self.is_wrong = True
            return end
        return end + 1

    def _escaped(self, char: str) -> int:
        """Take a character of an escape such as \\n or \\u00e9."""
        if self._escape != "\\":
            self.is_wrong = char not in _HEX
            self._escape = "" if len(self._escape) == len("\\u00e") else self._escape + char
        elif char == "u":
            self._escape = "\\u"
        else:
            self.is_wrong = char not in _ESCAPED
            self._escape = ""
        return 0 if self.is_wrong else 1
