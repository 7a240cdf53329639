"""Reads a multipart form as it comes, without holding any part whole."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from muxcluster.core.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a part. is_first: of a new part. file_name: None if it is not a file."""

    name: str
    file_name: str | None
    data: bytes
    is_first: bool


@dataclass(slots=True)
class _Part:
    """headers: of the part under way, names in lower case."""

    headers: dict[bytes, bytes] = field(default_factory=dict)
    header: bytes = b""
    value: bytes = b""
    is_begun: bool = False
    is_whole: bool = False


async def form_pieces(request: Request) -> AsyncGenerator[Piece, None]:
    """Yield the form's pieces in order; a part without content has one empty piece.

    Raises InvalidValue for another body, and what reading the body raises.
    """
    form = _Form(request.headers.get("content-type", ""))
    async for data in request.stream():
        for piece in form.feed(data):
            yield piece
    form.end()


class _Form:
    def __init__(self, content_type: str) -> None:
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise InvalidValue("expected a multipart/form-data body")
        self._part = _Part()
        self._pieces: list[Piece] = []
        self._is_whole = False
        try:
            self._parser = MultipartParser(
                options[b"boundary"],
                {
                    "on_part_begin": self._begin,
                    "on_header_field": self._header,
                    "on_header_value": self._value,
                    "on_header_end": self._end_header,
                    "on_part_data": self._data,
                    "on_part_end": self._end_part,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise InvalidValue(f"the form is malformed: {error}") from None

    def feed(self, data: bytes) -> list[Piece]:
        """Return the pieces in the next bytes of the body. Raises InvalidValue."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise InvalidValue(f"the form is malformed: {error}") from None
        pieces, self._pieces = self._pieces, []
        return pieces

    def end(self) -> None:
        """Raise InvalidValue if the body ended before the form."""
        if not self._is_whole:
            raise InvalidValue("the form ends in its middle")

    def _begin(self) -> None:
        self._part = _Part()

    def _header(self, data: bytes, start: int, end: int) -> None:
        self._part.header += data[start:end]

    def _value(self, data: bytes, start: int, end: int) -> None:
        self._part.value += data[start:end]

    def _end_header(self) -> None:
        part = self._part
        part.headers[part.header.lower()] = part.value
        part.header = part.value = b""

    def _data(self, data: bytes, start: int, end: int) -> None:
        _, options = parse_options_header(self._part.headers.get(b"content-disposition", b""))
        if b"name" not in options:
            raise InvalidValue("a part of the form has no name")
        file_name = options.get(b"filename")
        piece = Piece(
            options[b"name"].decode(errors="replace"),
            None if file_name is None else file_name.decode(errors="replace"),
            data[start:end],
            not self._part.is_begun,
        )
        self._part.is_begun = True
        self._pieces.append(piece)

    def _end_part(self) -> None:
        if not self._part.is_begun:
            self._data(b"", 0, 0)

    def _end(self) -> None:
        self._is_whole = True
