"""How many bytes each owner's files hold, and how many they may."""

from muxcluster.batch.store.job import OPEN
from muxcluster.batch.store.store import BatchStore
from muxcluster.core.errors import StorageQuotaExceeded

_OPEN = ", ".join(f"'{status}'" for status in sorted(OPEN))


class Quota:
    """The bytes of each owner in a store, against one limit for all owners.

    Complete files count, expired ones too while a batch reads them, and the results so far of open
    batches. Results are never refused: a batch that was accepted keeps all of its answers.
    """

    def __init__(self, store: BatchStore, max_bytes: int | None) -> None:
        """max_bytes: of one owner; None: no limit."""
        self._store = store
        self._max_bytes = max_bytes

    def used(self, owner: str) -> int:
        """Return the bytes that the owner's files and results hold. Raises StorageFailed."""
        sql = (
            "SELECT (SELECT coalesce(sum(num_bytes), 0) FROM files WHERE owner = ?) + "
            "(SELECT coalesce(sum(output_bytes + error_bytes), 0) FROM batches "
            f"WHERE status IN ({_OPEN}) AND owner = ?)"
        )
        ((found,),) = self._store.rows(sql, owner, owner)
        return int(found)

    def check(self, owner: str, more: int) -> None:
        """Raise StorageQuotaExceeded if the owner may not have `more` bytes beside its files."""
        if self._max_bytes is None:
            return
        used = self.used(owner)
        if used + more > self._max_bytes:
            raise StorageQuotaExceeded(
                f"the files of this key hold {used} of at most {self._max_bytes} bytes, and "
                f"{more} more were asked for: delete files, or let them expire (expires_after)"
            )


def stored_bytes(store: BatchStore) -> int:
    """Return the bytes of all owners' files and of the results of open batches."""
    sql = (
        "SELECT (SELECT coalesce(sum(num_bytes), 0) FROM files) + "
        "(SELECT coalesce(sum(output_bytes + error_bytes), 0) FROM batches "
        f"WHERE status IN ({_OPEN}))"
    )
    ((found,),) = store.rows(sql)
    return int(found)
