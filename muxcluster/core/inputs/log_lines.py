"""Formats of log lines, text or JSON: no secrets, and nothing in a message can end its line."""

import json
import logging
import os
import re
from datetime import UTC, datetime
from typing import Any

# Environment variable of a server's processes: "json", else text
LOG_FORMAT = "MUXCLUSTER_LOG_FORMAT"
REDACTED = "[redacted]"
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
# A name may be the end of a longer one: HF_TOKEN, client_secret
_NAMES = r"api[ _-]?key|admin[ _-]?key|authorization|password|passphrase|secret|token"
_IS = r"(['\"]?\s*[:=]\s*['\"]?)"
# of a model's vocabulary: token: 151645
_TOKEN_ID = r"(?<=token)['\"]?\s*[:=]\s*['\"]?\d{1,7}(?![\w~+/=-]|\.\w)"
_NAMED = re.compile(
    rf"({_NAMES})(?!{_TOKEN_ID})\b{_IS}(?!bearer|basic)[^\s'\",;&]{{6,}}", re.IGNORECASE
)
_SECRETS = (
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{6,}", re.IGNORECASE), rf"\1 {REDACTED}"),
    (_NAMED, rf"\1\2{REDACTED}"),
    (re.compile(r"\b(?:hf_|sk-|ghp_|github_pat_)[\w-]{8,}"), REDACTED),  # Hugging Face, OpenAI …
    (re.compile(r"([?&]key=)[^\s'\",;&#]{6,}", re.IGNORECASE), rf"\1{REDACTED}"),
    # up to the last @, which a password may have
    (re.compile(r"://[^/\s:@]*:[^/\s'\"]+@"), f"://{REDACTED}@"),
)


def is_json() -> bool:
    """True if this process writes JSON."""
    return os.environ.get(LOG_FORMAT) == "json"


def log_formatter() -> logging.Formatter:
    """Return the formatter of this process."""
    return JsonLines() if is_json() else TextLines(_TEXT)


def without_secrets(text: str) -> str:
    """Return `text` with `REDACTED` for what looks like a key, token or password."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def on_one_line(text: str) -> str:
    """Return `text` with escapes such as \\n for control characters."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class TextLines(logging.Formatter):
    """One line of text a record; the lines of its traceback follow, indented."""

    def format(self, record: logging.LogRecord) -> str:
        return without_secrets(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:
        return on_one_line(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"  {on_one_line(line)}" for line in lines)


class JsonLines(logging.Formatter):
    """One JSON object a record: time, level, logger, message, and error with its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": without_secrets(record.getMessage()),
        }
        if record.exc_info:
            line["error"] = without_secrets(self.formatException(record.exc_info))
        return json.dumps(line)


def json_line(process: str, line: str) -> str:
    """Return a line of a process's log as a JSON object with the process's name.

    What is no object, such as the output of C code, becomes the message of one.
    """
    try:
        content = json.loads(line)
        if isinstance(content, dict):
            return json.dumps({**content, "process": process})
    except (ValueError, RecursionError):
        pass
    return json.dumps({"message": without_secrets(line), "process": process})
