"""Batches that cannot go on because the disk takes no results, and why."""

import logging

from muxcluster.core.errors import StorageFailed

logger = logging.getLogger(__name__)


class StorageWaits:
    """Which batches wait for the disk. The log is told when the first one begins to wait and when
    none waits any more, however often each is tried again. For one event loop.

    num_failures: writes that the disk refused since the start.
    """

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self.num_failures = 0

    def __len__(self) -> int:
        return len(self._reasons)

    def begin(self, batch_id: str, error: StorageFailed) -> None:
        """The batch waits from now on, or still does, because of `error`."""
        self.num_failures += 1
        if not self._reasons:
            logger.error("%s waits until the disk has room: %s", batch_id, error)
        self._reasons[batch_id] = error.reason

    def end(self, batch_id: str) -> None:
        """The batch does not wait, or not any more."""
        if self._reasons.pop(batch_id, None) is not None and not self._reasons:
            logger.info("the disk has room again: %s goes on", batch_id)

    def reason(self, batch_id: str) -> str | None:
        """Why the batch waits, without the server's paths; None where it does not."""
        return self._reasons.get(batch_id)
