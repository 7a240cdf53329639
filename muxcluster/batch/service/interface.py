"""What the HTTP routes ask of the one process that keeps files and batches."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from muxcluster.batch.store.files import FilePage

PURPOSE = "batch"
ApiObject = Mapping[str, Any]
"""An object as OpenAI's API shows it."""


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """What a client asks for, of which the fields alone are checked. window: "24h"."""

    input_file_id: str
    endpoint: str
    window: str
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts for metrics."""

    by_status: Mapping[str, int]  # batches since the folder was made
    num_lines: Mapping[str, int]  # of these batches, by result
    # of answers since the service started, by kind; those in "cached" are in "prompt" too
    num_tokens: Mapping[str, int]
    num_waiting: int = 0  # batches that wait for the disk
    num_storage_failures: int = 0  # writes that the disk refused since the service started


class BatchService(Protocol):
    """Files and batches, each of one owner, whom alone it is there for.

    Everything raises RequestError where the client is wrong, StorageFailed where the disk takes
    nothing, and Unavailable where the service's process is not there.
    """

    async def start(self) -> None:
        """Go on with batches that are open."""
        ...

    async def close(self) -> None:
        """Stop working; open batches stay open. Idempotent."""
        ...

    async def begin(self, owner: str) -> str:
        """A new upload's id."""
        ...

    async def add(self, upload_id: str, data: bytes) -> None:
        """The upload's next bytes."""
        ...

    async def finish(self, upload_id: str, name: str, purpose: str) -> ApiObject:
        """The upload is whole: the file."""
        ...

    async def abandon(self, upload_id: str) -> None:
        """The upload will not be finished. Idempotent."""
        ...

    async def file(self, owner: str, file_id: str) -> ApiObject:
        """One file."""
        ...

    async def files(self, owner: str, page: FilePage) -> list[ApiObject]:
        """The owner's files."""
        ...

    async def delete(self, owner: str, file_id: str) -> ApiObject:
        """The file is gone."""
        ...

    async def read(self, owner: str, file_id: str, offset: int, count: int) -> bytes:
        """At most `count` bytes of a file; none at its end."""
        ...

    async def create(self, owner: str, asked: BatchRequest) -> ApiObject:
        """A new batch, which begins at once."""
        ...

    async def batch(self, owner: str, batch_id: str) -> ApiObject:
        """One batch as it is now."""
        ...

    async def batches(self, owner: str, count: int, after: str | None) -> list[ApiObject]:
        """The owner's batches, newest first."""
        ...

    async def cancel(self, owner: str, batch_id: str) -> ApiObject:
        """The batch ends soon, with what it has."""
        ...

    async def figures(self) -> Figures | None:
        """Counts for metrics; None where there was nothing to count yet."""
        ...
