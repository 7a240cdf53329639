"""Client of /v1/files and /v1/batches; files are streamed, never held in memory."""

import http.client
import json
import os
import uuid
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from muxcluster.cli.terminal.asking import answer_of, bearer
from muxcluster.core.errors import ConfigError, StorageFailed, Unavailable
from muxcluster.core.inputs.web_url import checked_url
from muxcluster.workload.files.put import put

ApiObject = Mapping[str, Any]  # An object as OpenAI's API shows it
TIMEOUT_S = 60.0  # until the start of each answer, and between parts of a file
EVENT_TIMEOUT_S = 20.0  # between events of a batch, which come every few seconds
PLAN_TIMEOUT_S = 900.0  # of a plan, for which the server reads the whole file
_CHUNK_BYTES = 2**20
# Fields of a batch that are read here, and of its counts
_BATCH_FIELDS = {"id", "status", "request_counts", "output_file_id", "error_file_id"}
_COUNTS = {"total", "completed", "failed"}


class BatchServer:
    """The batches of one key on one server.

    Every method raises Unavailable if the server does not answer or cannot serve now, and
    ConfigError if it refuses the request.
    """

    def __init__(self, url: str, api_key: str | None) -> None:
        """url: with or without `/v1`. Raises ConfigError if it is not a URL."""
        checked_url(url)
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = bearer(api_key)

    def upload(self, path: Path, lifetime_s: int | None = None) -> str:
        """Upload a file; return its id there. Raises ConfigError if it cannot be read too.

        lifetime_s: after so long the server deletes it; None: never.
        """
        mark = uuid.uuid4().hex
        fields = {"purpose": "batch"}
        if lifetime_s is not None:
            fields |= {f"expires_after[{k}]": str(v) for k, v in _expiry(lifetime_s).items()}
        head = "".join(
            f'--{mark}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
            for name, value in fields.items()
        ).encode()
        head += (
            f'--{mark}\r\nContent-Disposition: form-data; name="file"; '
            f'filename="{quote(os.fsencode(path.name))}"\r\n\r\n'
        ).encode()
        tail = f"\r\n--{mark}--\r\n".encode()
        try:
            size = path.stat().st_size
            with path.open("rb"):
                pass
        except OSError as error:
            raise ConfigError(path, "", f"cannot be read: {error.strerror}") from error
        headers = {
            "Content-Type": f"multipart/form-data; boundary={mark}",
            "Content-Length": str(len(head) + size + len(tail)),
        }
        return str(self._asked("files", _form(path, size, head, tail), headers, needs={"id"})["id"])

    def create(
        self, file_id: str, endpoint: str, window: str, lifetime_s: int | None = None
    ) -> ApiObject:
        """Create a batch of an uploaded file. lifetime_s: of its result files; None: endless."""
        fields: dict[str, Any] = {"input_file_id": file_id, "endpoint": endpoint}
        fields["completion_window"] = window
        if lifetime_s is not None:
            fields["output_expires_after"] = _expiry(lifetime_s)
        return self._checked(self._asked("batches", json.dumps(fields).encode()))

    def plan(self, file_id: str) -> ApiObject:
        """Return what the job in an uploaded file would take; it is not started."""
        data = json.dumps({"input_file_id": file_id}).encode()
        with self._answer("batches/plan", data, timeout_s=PLAN_TIMEOUT_S) as answer:
            found = self._json(answer)
        if found.get("object") != "batch.plan":
            raise self._not_ours()
        return found

    def delete(self, file_id: str) -> None:
        """Delete a file."""
        with self._answer(f"files/{quote(file_id, safe='')}", method="DELETE"):
            pass

    def events(self, batch_id: str) -> Iterator[ApiObject]:
        """Yield the batch as it is now and whenever it changes, until it is over or the server ends
        the stream. Raises ConfigError where the server has no events."""
        path = f"batches/{quote(batch_id, safe='')}/events"
        with self._answer(path, timeout_s=EVENT_TIMEOUT_S) as answer:
            try:
                for line in answer:
                    name, _, data = line.partition(b":")
                    if name != b"data" or data.strip() == b"[DONE]":
                        continue
                    yield self._checked(json.loads(data))
            except ValueError as error:
                raise self._not_ours() from error
            except (OSError, http.client.HTTPException) as error:
                raise Unavailable(f"{self.url} broke off its events: {error}") from error

    def batch(self, batch_id: str) -> ApiObject:
        """Return one batch as it is now."""
        return self._checked(self._asked(f"batches/{quote(batch_id, safe='')}"))

    def batches(self, count: int) -> list[ApiObject]:
        """Return the newest batches."""
        path = f"batches?{urlencode({'limit': count})}"
        found = self._asked(path, needs={"data"})["data"]
        if not isinstance(found, list):
            raise self._not_ours()
        return [self._checked(each) for each in found]

    def cancel(self, batch_id: str) -> ApiObject:
        """Cancel a batch; it ends soon, with the answers it has."""
        return self._checked(self._asked(f"batches/{quote(batch_id, safe='')}/cancel", b"{}"))

    def download(self, file_id: str, place: Path) -> None:
        """Download a file, whole or not at all. Raises StorageFailed too."""
        part = place.with_name(f"{place.name}.part")
        with self._answer(f"files/{quote(file_id, safe='')}/content") as answer:
            try:
                with part.open("wb") as file:
                    for data in _pieces(answer, self.url):
                        file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                put(part, place)
            except OSError as error:
                raise StorageFailed(place, error.strerror or str(error)) from error
            finally:
                part.unlink(missing_ok=True)

    def _asked(
        self,
        path: str,
        data: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        needs: Set[str] = frozenset(),
    ) -> dict[str, Any]:
        """Return the JSON of the answer. data: of a POST; None: a GET. needs: its fields."""
        with self._answer(path, data, headers) as answer:
            found = self._json(answer)
        if not needs <= found.keys():
            raise self._not_ours()
        return found

    def _json(self, answer: http.client.HTTPResponse) -> dict[str, Any]:
        try:
            found = json.loads(answer.read())
        except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
            raise Unavailable(f"{self.url} does not answer in JSON: {error}") from error
        if not isinstance(found, dict):
            raise self._not_ours()
        return found

    def _checked(self, batch: Any) -> ApiObject:
        """Return `batch`. Raises Unavailable if it is no batch."""
        if isinstance(batch, dict) and batch.keys() >= _BATCH_FIELDS:
            counts = batch["request_counts"]
            if isinstance(counts, dict) and counts.keys() >= _COUNTS:
                return batch
        raise self._not_ours()

    def _not_ours(self) -> Unavailable:
        return Unavailable(f"{self.url} is not a server with batches")

    def _answer(
        self,
        path: str,
        data: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        method: str | None = None,
    ) -> http.client.HTTPResponse:
        """Return the open answer. method: None: POST with data, else GET."""
        sent = {**self._headers, **(headers or {})}
        return answer_of(self.url, path, data, sent, timeout_s, method=method)


def _expiry(lifetime_s: int) -> dict[str, str | int]:
    return {"anchor": "created_at", "seconds": lifetime_s}


def _form(path: Path, size: int, head: bytes, tail: bytes) -> Iterator[bytes]:
    """Yield the form's bytes, with exactly `size` of the file, as announced. Raises ConfigError."""
    yield head
    left = size
    with path.open("rb") as file:
        while left:
            data = file.read(min(left, _CHUNK_BYTES))
            if not data:
                raise ConfigError(path, "", "got shorter while it was sent")
            left -= len(data)
            yield data
    yield tail


def _pieces(answer: http.client.HTTPResponse, url: str) -> Iterator[bytes]:
    """Yield the answer's body. Raises Unavailable if it ends before its length, where it has one.

    A proxy that compresses or rewrites a body sends it in chunks, whose end http.client checks.
    """
    length = answer.headers["Content-Length"] or ""
    left = int(length) if length.isdecimal() else None
    while left is None or left:
        try:
            data = answer.read(_CHUNK_BYTES if left is None else min(left, _CHUNK_BYTES))
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"{url} broke off in the middle of a file: {error}") from error
        if not data:
            if left is None:
                return
            raise Unavailable(f"{url} broke off in the middle of a file")
        if left is not None:
            left -= len(data)
        yield data
