"""Log lines: one a record whatever a client sends, and no secret in them."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.core.inputs.log_lines import (
    LOG_FORMAT,
    REDACTED,
    JsonLines,
    TextLines,
    json_line,
    log_formatter,
    without_secrets,
)

SECRET = "s3cr3t-Value_42"


def record(message: str, *args: object, error: BaseException | None = None) -> logging.LogRecord:
    trace = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("muxcluster.x", logging.WARNING, "x.py", 1, message, args, trace)


@given(st.text())
def test_a_message_is_one_line(text: str) -> None:
    shown = TextLines("%(levelname)s %(message)s").format(record("%s", text))
    assert len(shown.splitlines()) == 1 and shown.startswith("WARNING ")
    assert not any(character < " " or "\x7f" <= character <= "\x9f" for character in shown)
    shown = JsonLines().format(record("%s", text))
    assert len(shown.splitlines()) == 1
    assert json.loads(shown)["message"] == without_secrets(text)


def test_what_looks_like_another_line_is_none() -> None:
    """A client's text with a line break, a fake line and a command for the terminal."""
    hostile = "x\n2026-01-01 00:00:00,000 INFO muxcluster.audit: all is well\x1b[2J\u2028y"
    shown = log_formatter().format(record("a client sent %s", hostile))
    assert "x\\n2026-01-01" in shown and "\\x1b[2J\\u2028y" in shown
    try:
        raise ValueError(hostile)
    except ValueError as error:
        shown = log_formatter().format(record("failed", error=error))
    assert [line for line in shown.splitlines()[1:] if not line.startswith("  ")] == []


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {SECRET}",
        f"{{'authorization': 'Bearer {SECRET}'}}",
        f"X-Api-Key: {SECRET}",
        f"ApiSettings(api_key='{SECRET}', more_keys=())",
        f"admin_key={SECRET}",
        f'{{"password": "{SECRET}"}}',
        f"https://user:{SECRET}@hub.example/x",
        f"GET /x?token={SECRET}&y=1",
        f"HF_TOKEN={SECRET}",
        f"MUXCLUSTER_API_KEY={SECRET}",
        f'openai_api_key: "{SECRET}"',
        f"access_token={SECRET}",
        f"client_secret: {SECRET}",
        f"GET /v1/models?key={SECRET}",
        f"GET /x?a=b&key={SECRET}&y=1",
        f"https://user:pa@{SECRET}@hub.example/x",
        f"redis://:{SECRET}@10.0.0.1:6379",
        f"token: 151645-{SECRET}",
        "password=31415926",
        f"hf_{SECRET.replace('-', '')} and sk-{SECRET}",
    ],
)
@pytest.mark.parametrize("form", [TextLines, JsonLines])
def test_secrets_are_not_shown(text: str, form: Callable[[], logging.Formatter]) -> None:
    shown = form().format(record("it was %s here", text))
    assert SECRET not in shown and SECRET.replace("-", "") not in shown and "31415" not in shown
    assert REDACTED in shown and "it was" in shown and shown.rstrip('}"').endswith("here")


def test_ordinary_lines_stay_as_they_are() -> None:
    for text in (
        "job 5 of chat-7b failed: CUDA error",
        "http://127.0.0.1:8000/v1/models",
        "prompt_tokens=512 output_tokens: 338, token 17",
        "no key 'team-a' in keys.yaml",
        "next token: 151645",
        "stop_token=128009, 'token': 1000000.",
        "/usage?by=key&key=a and http://127.0.0.1:8000/x@y",
    ):
        assert without_secrets(text) == text


def test_the_environment_says_which_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LOG_FORMAT, raising=False)
    assert isinstance(log_formatter(), TextLines)
    monkeypatch.setenv(LOG_FORMAT, "json")
    try:
        raise KeyError("x")
    except KeyError as error:
        line = json.loads(log_formatter().format(record("oh %d", 5, error=error)))
    assert (line["level"], line["logger"], line["message"]) == ("WARNING", "muxcluster.x", "oh 5")
    assert line["time"].endswith("+00:00") and "KeyError" in line["error"]
    assert Path(__file__).name in line["error"]


def test_lines_of_processes_get_their_names() -> None:
    for line in ('{"message": "x"}', '{"process": "another", "message": "x"}'):
        assert json.loads(json_line("unit", line)) == {"process": "unit", "message": "x"}
    deep = '{"a":' * 100_000
    for other in ("terminate called", "[1]", "5", f"token={SECRET}", deep, "[" * 100_000):
        line = json.loads(json_line("unit", other))
        assert line == {"process": "unit", "message": without_secrets(other)}
