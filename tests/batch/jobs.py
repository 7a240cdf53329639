"""Batch files and stores for tests."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from muxcluster.batch.store.intake import Intake, Limits
from muxcluster.batch.store.job import Batch, Order
from muxcluster.batch.store.pending import Pending
from muxcluster.batch.store.store import BatchStore, Result

MODELS = ("tiny", "other")


def line_of(custom_id: str, **changes: Any) -> bytes:
    """A line for a completion of `tiny`; changes: other fields, None leaves one out."""
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 3}
    url = "/v1/completions"
    fields = {"custom_id": custom_id, "method": "POST", "url": url, "body": body, **changes}
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


def submit(store: BatchStore, lines: Iterable[bytes], batch_id: str = "b") -> Batch:
    """A batch of these lines, not read yet."""
    store.path_of(f"in-{batch_id}").write_bytes(b"".join(line + b"\n" for line in lines))
    return store.create(Order("me", f"in-{batch_id}", None), 1, batch_id)


def taken_in(store: BatchStore, lines: Iterable[bytes], limits: Limits | None = None) -> Batch:
    """The same, read."""
    return Intake(store, submit(store, lines), MODELS, limits or Limits()).run(2)


def result_of(line: Pending) -> Result:
    """An answer for even lines, a failure for odd ones, some hundred bytes long."""
    fields = {"line": line.line, "text": "x" * (line.line % 500)}
    return Result(line.line, line.line % 2 == 0, json.dumps(fields).encode())


def read_results(path: Path) -> list[Mapping[str, Any]]:
    """All lines of a result file, each of which must be whole."""
    if not path.exists():
        return []
    data = path.read_bytes()
    assert data.endswith(b"\n") or not data
    return [json.loads(line) for line in data.splitlines()]
