"""Result lines in OpenAI's format, with the number of the input line."""

import json
from collections.abc import Mapping
from typing import Any

from muxcluster.batch.store.store import Result


def answered(
    line: int, custom_id: str, request_id: str, body: Mapping[str, Any], status: int = 200
) -> Result:
    """Return the result of a line that was run. body: the server's answer, with this status."""
    response = {"status_code": status, "request_id": request_id, "body": body}
    return Result(line, status == 200, _line(line, custom_id, response, None))


def refused(line: int, custom_id: str | None, code: str, message: str) -> Result:
    """Return the result of a line that was not run. custom_id: None if it has none."""
    error = {"code": code, "message": f"line {line}: {message}"}
    return Result(line, False, _line(line, custom_id, None, error))


def _line(line: int, custom_id: str | None, response: object, error: object) -> bytes:
    fields = {
        "id": f"batch_req_{line}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
        "line": line,
    }
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
