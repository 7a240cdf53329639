"""Returns the bytes of a vocabulary entry, by the kind of its decoder."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK = "\u2581"


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's alphabet: printable Latin-1 as itself, other bytes from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet


_BYTE_OF = _byte_alphabet()


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
            values = [_BYTE_OF.get(char) for char in piece]
            known = [value for value in values if value is not None]
            return bytes(known) if len(known) == len(values) else piece.encode()
        match = _BYTE_TOKEN.fullmatch(piece) if self._has_fallback else None
        if match is not None:
            return bytes([int(match.group(1), 16)])
        return piece.replace(self._space_mark, " ").encode()
