"""The `BatchService` protocol: files and batches, as the HTTP routes use them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from muxcluster.batch.store.files import FilePage
from muxcluster.core.inputs.carried import Carried

PURPOSE = "batch"
ApiObject = Mapping[str, Any]  # an object as OpenAI's API shows it


@dataclass(frozen=True, slots=True)
class BatchRequest(Carried):
    """A client's request for a batch; only the fields' types are checked. window: "24h".

    results_lifetime_s: how long its result files are kept; None: until they are deleted.
    """

    input_file_id: str
    endpoint: str
    window: str
    metadata: Mapping[str, str]
    results_lifetime_s: int | None = None


@dataclass(frozen=True, slots=True)
class Figures(Carried):
    """Counts for metrics."""

    by_status: Mapping[str, int]  # batches since the folder was made
    num_lines: Mapping[str, int]  # of these batches, by result
    # of answers since the service started, by kind; those in "cached" are in "prompt" too
    num_tokens: Mapping[str, int]
    num_waiting: int = 0  # batches that wait for the disk
    num_storage_failures: int = 0  # writes that the disk refused since the service started
    num_stored_bytes: int = 0  # of all files, and of the results of open batches


class BatchService(Protocol):
    """Files and batches; each belongs to one owner and is invisible to others.

    All methods raise RequestError for a client's mistake, StorageFailed if the disk takes nothing,
    and Unavailable if the service's process is not there.
    """

    async def start(self) -> None:
        """Go on with batches that are open."""
        ...

    async def close(self) -> None:
        """Stop working; open batches stay open. Idempotent."""
        ...

    async def begin(self, owner: str) -> str:
        """Start an upload and return its id."""
        ...

    async def add(self, upload_id: str, data: bytes) -> None:
        """Append bytes to an upload."""
        ...

    async def finish(
        self, upload_id: str, name: str, purpose: str, lifetime_s: int | None = None
    ) -> ApiObject:
        """Complete an upload and return the file. lifetime_s: until it expires; None: never."""
        ...

    async def abandon(self, upload_id: str) -> None:
        """Give up an upload. Idempotent."""
        ...

    async def file(self, owner: str, file_id: str) -> ApiObject:
        """Return a file."""
        ...

    async def files(self, owner: str, page: FilePage) -> list[ApiObject]:
        """Return a page of the owner's files."""
        ...

    async def delete(self, owner: str, file_id: str) -> ApiObject:
        """Delete a file."""
        ...

    async def read(self, owner: str, file_id: str, offset: int, count: int) -> bytes:
        """Return at most `count` bytes of a file; none at its end."""
        ...

    async def create(self, owner: str, asked: BatchRequest) -> ApiObject:
        """Create a batch, which starts at once."""
        ...

    async def batch(self, owner: str, batch_id: str) -> ApiObject:
        """Return a batch as it is now."""
        ...

    async def changed(self, owner: str, seen: ApiObject, patience_s: float) -> ApiObject:
        """Return the batch `seen` as it is now, once its state or its counts have changed.

        patience_s: after so long it is returned as it is. Each call takes a moment, so that one
        call after another is no load.
        """
        ...

    async def plan(self, owner: str, file_id: str, endpoint: str | None) -> ApiObject:
        """Predict the job in a file, without creating a batch. endpoint: the only url of its lines;
        None: any. Raises Overloaded while others are predicted."""
        ...

    async def batches(self, owner: str, count: int, after: str | None) -> list[ApiObject]:
        """Return the owner's batches, newest first."""
        ...

    async def cancel(self, owner: str, batch_id: str) -> ApiObject:
        """Cancel a batch, which ends soon with the results it has."""
        ...

    async def figures(self) -> Figures | None:
        """Return counts for metrics; None if there are none yet."""
        ...
