"""Batches that cannot go on because the disk takes no results, and why."""

import logging

from muxcluster.core.errors import StorageFailed

logger = logging.getLogger(__name__)


class StorageWaits:
    """The batches that wait for the disk. For one event loop.

    Logs when the first one starts to wait and when none waits any more.
    """

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self.num_failures = 0  # writes that the disk refused

    def __len__(self) -> int:
        return len(self._reasons)

    def begin(self, batch_id: str, error: StorageFailed) -> None:
        self.num_failures += 1
        if not self._reasons:
            logger.error("%s waits until the disk has room: %s", batch_id, error)
        self._reasons[batch_id] = error.reason

    def end(self, batch_id: str) -> None:
        if self._reasons.pop(batch_id, None) is not None and not self._reasons:
            logger.info("the disk has room again: %s goes on", batch_id)

    def reason(self, batch_id: str) -> str | None:
        """Return why the batch waits, without the server's paths; None if it does not."""
        return self._reasons.get(batch_id)
