"""Returns the bytes of a vocabulary entry, by the kind of its decoder."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK = "\u2581"


def _byte_alphabet() -> dict[int, int]:
    """Return the translation of GPT-2's alphabet to Latin-1, for str.translate.

    Printable Latin-1 stands for itself, other bytes are written from U+0100 on. What is not in the
    alphabet becomes U+FFFF, which Latin-1 does not have.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    outside = dict.fromkeys(others, 0xFFFF)
    return {**outside, **{0x100 + index: byte for index, byte in enumerate(others)}}


_TO_LATIN_1 = _byte_alphabet()


class ByteReader:
    """Reads vocabulary entries of one tokenizer.

    parts: the steps of its decoder, as the JSON objects of tokenizer.json.
    """

    def __init__(self, parts: Sequence[Mapping[str, Any]]) -> None:
        kinds = {part["type"] for part in parts}
        self._is_byte_level = "ByteLevel" in kinds
        self._has_fallback = "ByteFallback" in kinds
        self._space_mark = _SPACE_MARK
        for part in parts:
            if part["type"] == "Metaspace":
                self._space_mark = part["replacement"]

    def is_fallback(self, piece: str) -> bool:
        """True for <0xNN> of a tokenizer with byte fallback."""
        return self._has_fallback and _BYTE_TOKEN.fullmatch(piece) is not None

    def read(self, piece: str) -> bytes:
        """Return an entry's bytes; added tokens of a byte-level tokenizer may be plain text."""
        if self._is_byte_level:
            try:
                return piece.translate(_TO_LATIN_1).encode("latin-1")
            except UnicodeEncodeError:
                return piece.encode()
        match = _BYTE_TOKEN.fullmatch(piece) if self._has_fallback else None
        if match is not None:
            return bytes([int(match.group(1), 16)])
        return piece.replace(self._space_mark, " ").encode()
