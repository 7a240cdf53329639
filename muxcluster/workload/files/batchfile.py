"""Reader of a batch job from JSON lines: OpenAI's batch format, or a prompt and a length per line.

Plain: {"prompt": text or token ids, "max_tokens": n} and, where known, "output_tokens".
OpenAI's: {"custom_id", "method", "url", "body": {"messages" or "prompt", "max_tokens", ...}}. Text
is not tokenised: four bytes of UTF-8 count as a token, so that shared prefixes remain visible.
"""

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.errors import ConfigError
from muxcluster.workload.batchjob import BatchJob
from muxcluster.workload.files.rows import Row, json_rows

_TEXT_BYTES = 4  # bytes of text per token, as of English in current vocabularies
_MOST = 2**31
_MOST_TOLD = 3


@dataclass(slots=True)
class BadLines:
    """Lines that are not requests."""

    num: int = 0
    first: list[ConfigError] = field(default_factory=list)  # errors of the first few

    def add(self, error: ConfigError) -> None:
        """Count one more."""
        self.num += 1
        if len(self.first) < _MOST_TOLD:
            self.first.append(error)


@dataclass(frozen=True, slots=True)
class Survey:
    """Result of checking all lines of a file."""

    models: tuple[str, ...]  # that requests name, in the order of their first lines
    bad: BadLines


def survey(path: Path, why_not: Callable[[str], str | None]) -> Survey:
    """Check all lines of `path`; lines that are not requests are counted.

    why_not: returns what is wrong with a model's name, None for a good one. Where requests name
    several models, one that names none is bad as well. Raises ConfigError where the file cannot be
    read, and the first line's error where all lines are bad.
    """
    bad, unnamed = BadLines(), BadLines()
    models: dict[str, None] = {}
    num_good = 0
    for row in json_rows(path, bad.add):
        try:
            request = _checked(row)
            if "model" not in request.fields:
                unnamed.add(
                    ConfigError(path, "model", "missing, and others name several", row.line)
                )
                continue
            name = request.text("model")
            if (reason := why_not(name)) is not None:
                request.fail("model", reason)
        except ConfigError as error:
            bad.add(error)
        else:
            num_good += 1
            models[name] = None
    if len(models) > 1:
        bad.first = [*bad.first, *unnamed.first][:_MOST_TOLD]
        bad.num += unnamed.num
    elif not num_good and not unnamed.num and bad.num:
        raise bad.first[0]
    return Survey(tuple(models), bad)


def _checked(row: Row) -> Row:
    request = _body(row)
    _prompt(request)
    _output(request, 1)
    return request


@dataclass(frozen=True, slots=True)
class Skips:
    """Lines that are left out instead of raising an error."""

    others: bool = False  # requests for another model than the given one, or for none
    bad: bool = False  # lines that are not requests


NOTHING = Skips()


def read_batch(
    path: Path, default_output: int, model: str | None = None, skips: Skips = NOTHING
) -> BatchJob:
    """Read the requests of `path` line by line; names ending in .gz are compressed.

    default_output: output tokens of a line without a limit. model: the name that lines may give;
    None allows any single one. Raises ConfigError with the line for malformed ones, and for a file
    without requests.
    """
    ids, lengths, outputs = array("i"), array("q"), array("q")
    num_known = 0
    for row in json_rows(path, _ignored if skips.bad else None):
        try:
            request = _body(row)
            if skips.others and request.fields.get("model") != model:
                continue
            model = _checked_model(request, model)
            tokens = _prompt(request)
            output, is_known = _output(request, default_output)
        except ConfigError:
            if not skips.bad:
                raise
            continue
        ids.frombytes(tokens.tobytes())
        lengths.append(len(tokens))
        outputs.append(output)
        num_known += is_known
    if not lengths:
        raise ConfigError(path, "", "no request: expected a JSON object on each line")
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(np.array(lengths, dtype=np.int64), out=offsets[1:])
    return BatchJob(
        np.array(ids, dtype=np.int32), offsets, np.array(outputs, dtype=np.int64), num_known
    )


def _ignored(error: ConfigError) -> None:
    pass


def _body(row: Row) -> Row:
    """Return the request: the line, or the body inside OpenAI's format."""
    if "body" not in row.fields:
        return row
    body = row.fields["body"]
    if not isinstance(body, dict):
        row.fail("body", f"expected a JSON object, found {body!r:.40}")
    return replace(row, fields=body)


def _checked_model(request: Row, model: str | None) -> str | None:
    if "model" not in request.fields:
        return model
    name = request.text("model")
    if model is not None and name != model:
        request.fail("model", f"a job is for one model: expected {model!r}, found {name!r}")
    return name


def _output(request: Row, default: int) -> tuple[int, bool]:
    """Return output tokens, and whether they are the true length rather than a limit."""
    if "output_tokens" in request.fields:
        return request.whole("output_tokens", 1), True
    for name in ("max_completion_tokens", "max_tokens"):
        if request.fields.get(name) is not None:
            return request.whole(name, 1), False
    return default, False


def _prompt(request: Row) -> NDArray[np.int32]:
    """Return token ids, or placeholders for them, int32; at least one."""
    if "messages" in request.fields:
        return _text_ids(_chat_text(request))
    prompt = request.fields.get("prompt")
    if isinstance(prompt, str) and prompt:
        return _text_ids(prompt)
    if not isinstance(prompt, list) or not prompt:
        request.fail("prompt", f"expected text or token ids, found {prompt!r:.40}")
    for entry in prompt:
        if type(entry) is not int or not 0 <= entry < _MOST:
            request.fail("prompt", f"expected token ids from 0 to 2**31 - 1, found {entry!r:.40}")
    return np.array(prompt, dtype=np.int32)


def _chat_text(request: Row) -> str:
    messages = request.fields["messages"]
    if not isinstance(messages, list) or not messages:
        request.fail("messages", f"expected a list of messages, found {messages!r:.40}")
    return "".join(f"{_said(request, each)}\n" for each in messages)


def _said(request: Row, message: Any) -> str:
    """Return role and text of one message; its content may be a list of text parts."""
    if not isinstance(message, Mapping):
        request.fail("messages", f"expected objects, found {message!r:.40}")
    role, content = message.get("role"), message.get("content")
    if isinstance(content, list):
        content = "".join(_part(request, part) for part in content)
    if not isinstance(role, str) or not isinstance(content, str):
        request.fail("messages", f"expected role and content as text, found {message!r:.60}")
    return f"{role}\n{content}"


def _part(request: Row, part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) else None
    if not isinstance(text, str):
        request.fail("messages", f"expected parts of text, found {part!r:.40}")
    return text


def _text_ids(text: str) -> NDArray[np.int32]:
    data = text.encode("utf-8", "surrogatepass")
    padded = data + bytes(-len(data) % _TEXT_BYTES)
    return np.frombuffer(padded, dtype="<i4").astype(np.int32) & np.int32(0x7FFFFFFF)
