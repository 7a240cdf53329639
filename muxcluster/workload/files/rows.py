"""Rows of CSV and JSONL files with checked fields: errors name file, line and field."""

import csv
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from gzip import BadGzipFile
from pathlib import Path
from typing import Any, NoReturn
from zlib import error as ZlibError

from muxcluster.core.errors import ConfigError
from muxcluster.core.inputs.json_file import parse_nested
from muxcluster.workload.files.streams import open_text

_MOST = 2**31  # integers are below it, so that they fit int32
_DIGITS = re.compile("[0-9]{1,10}")
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?")
_UNREADABLE = (OSError, UnicodeDecodeError, EOFError, BadGzipFile, ZlibError)


OnBad = Callable[[ConfigError], None]  # gets the error of a line that is left out


@dataclass(frozen=True, slots=True)
class Row:
    """One line."""

    path: Path
    line: int | None  # from 1; None for an entry of a file that is one document
    fields: Mapping[str, Any]

    def fail(self, field: str, message: str) -> NoReturn:
        """Raise the ConfigError of this row."""
        raise ConfigError(self.path, field, message, self.line)

    def text(self, field: str) -> str:
        """Return a non-empty string. Raises ConfigError."""
        value = self.fields.get(field)
        if not isinstance(value, str) or not value:
            self.fail(field, f"expected text, found {value!r}")
        return value

    def whole(self, field: str, least: int) -> int:
        """Return an integer from `least` up (JSON number or CSV digits). Raises ConfigError."""
        value = self.fields.get(field)
        if isinstance(value, str) and _DIGITS.fullmatch(value):
            value = int(value)
        if type(value) is not int or not least <= value < _MOST:
            self.fail(field, f"expected a whole number from {least} to 2**31 - 1, found {value!r}")
        return value

    def number(self, field: str, least: float = 0.0) -> float:
        """Return a finite number from `least` up. Raises ConfigError."""
        value = self.fields.get(field)
        found = math.nan
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            found = float(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found = float(value) if abs(value) < 1e300 else math.inf
        if not least <= found < math.inf:
            self.fail(field, f"expected a number from {least:g} up, found {value!r}")
        return found

    def blocks(self, field: str, prompt_tokens: int, block_tokens: int) -> tuple[int, ...]:
        """Return the ids of a prompt's blocks, from 0 up, one each. Raises ConfigError."""
        value, wanted = self.fields.get(field), -(-prompt_tokens // block_tokens)
        if not isinstance(value, list) or len(value) != wanted:
            found = f"{len(value)} entries" if isinstance(value, list) else repr(value)
            message = f"{wanted} block ids ({prompt_tokens} tokens in blocks of {block_tokens})"
            self.fail(field, f"expected {message}, found {found}")
        for entry in value:
            if type(entry) is not int or not 0 <= entry < _MOST:
                self.fail(field, f"expected ids from 0 to 2**31 - 1, found {entry!r}")
        return tuple(value)


def csv_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the rows under a header that must have these columns. Raises ConfigError."""
    try:
        with open_text(path) as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            _check_header(path, header, columns)
            for values in reader:
                line = reader.line_num
                if len(values) != len(header):
                    message = f"expected {len(header)} fields, found {len(values)}"
                    raise ConfigError(path, "", message, line)
                yield Row(path, line, dict(zip(header, values, strict=True)))
    except csv.Error as error:
        raise ConfigError(path, "", f"not CSV: {error}", reader.line_num) from error
    except _UNREADABLE as error:
        raise ConfigError(path, "", f"not readable: {error}") from error


def json_rows(path: Path, on_bad: OnBad | None = None) -> Iterator[Row]:
    """Yield one JSON object per line.

    on_bad: gets the errors of malformed lines, which are then left out. Raises ConfigError for a
    malformed line without `on_bad`, and for a file that cannot be read.
    """
    try:
        with open_text(path, "strict" if on_bad is None else "surrogateescape") as file:
            for line, text in enumerate(file, start=1):
                try:
                    row = Row(path, line, _json_object(path, line, text))
                except ConfigError as error:
                    if on_bad is None:
                        raise
                    on_bad(error)
                else:
                    yield row
    except _UNREADABLE as error:
        raise ConfigError(path, "", f"not readable: {error}") from error


def json_document(path: Path) -> Any:
    """Return the file as one JSON value. Raises ConfigError."""
    try:
        with open_text(path) as file:
            return parse_nested(file.read())
    except json.JSONDecodeError as error:
        raise ConfigError(path, "", f"not JSON: {error.msg}", error.lineno) from error
    except _UNREADABLE as error:
        raise ConfigError(path, "", f"not readable: {error}") from error
    except ValueError as error:
        raise ConfigError(path, "", f"not JSON: {error}") from error


def _check_header(path: Path, header: Sequence[str], columns: Sequence[str]) -> None:
    missing = [column for column in columns if column not in header]
    if missing:
        raise ConfigError(path, missing[0], f"expected this column, found {header}", 1)
    if len(set(header)) < len(header):
        raise ConfigError(path, "", f"expected each column once, found {header}", 1)


def _json_object(path: Path, line: int, text: str) -> dict[str, Any]:
    try:
        value = parse_nested(text.encode())  # fails for bytes that are not UTF-8
    except json.JSONDecodeError as error:
        raise ConfigError(path, "", f"not JSON: {error.msg}", line) from error
    except UnicodeEncodeError as error:
        raise ConfigError(path, "", "not UTF-8", line) from error
    except ValueError as error:
        raise ConfigError(path, "", f"not JSON: {error}", line) from error
    if not isinstance(value, dict):
        raise ConfigError(path, "", f"expected a JSON object, found {text.strip()[:40]}", line)
    return value
