"""Uploaded files and result files of batches, and uploads that are not complete."""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from muxcluster.batch.store.appending import cut, write_at
from muxcluster.batch.store.database import UPLOADS
from muxcluster.batch.store.quota import Quota
from muxcluster.batch.store.store import BatchStore
from muxcluster.core.errors import ContentTooLarge, InvalidValue, NotFound, StorageFailed
from muxcluster.core.inputs.private import make_private_folder

IDLE_S = 600.0  # an upload without new bytes for so long is given up
_COLUMNS = "id, owner, purpose, name, num_bytes, created_at, expires_at"
_IS_THERE = "(expires_at IS NULL OR expires_at > ?)"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A complete file. created_at, expires_at: Unix seconds; None: kept until it is deleted."""

    file_id: str
    owner: str
    purpose: str
    name: str
    num_bytes: int
    created_at: int
    expires_at: int | None = None


@dataclass(frozen=True, slots=True)
class FilePage:
    """Which files are listed."""

    count: int
    after: str | None = None  # the id before the first of them
    purpose: str | None = None  # None lists all
    is_newest_first: bool = True


@dataclass(slots=True, eq=False)
class _Upload:
    owner: str
    path: Path
    num_bytes: int = 0
    touched_s: float = 0.0
    num_coming: int = 0  # bytes that are being written


class FileStore:
    """The files of a store. Any thread may call it, one at a time for the same upload.

    An expired file is gone for its owner; its bytes stay until no open batch reads it.
    """

    def __init__(
        self,
        store: BatchStore,
        max_bytes: int,
        quota: Quota | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """max_bytes: of a file. quota: None: of all files of an owner as many as there are. clock:
        Unix seconds. Removes what crashes left unfinished. Raises StorageFailed."""
        self._store = store
        self._max_bytes = max_bytes
        self._quota = Quota(store, None) if quota is None else quota
        self._clock = clock
        self._folder = store.directory / UPLOADS
        self._uploads: dict[str, _Upload] = {}
        try:
            make_private_folder(self._folder)
            self._sweep()
        except OSError as error:
            raise StorageFailed(self._folder, error.strerror or str(error)) from error

    def _sweep(self) -> None:
        for path in self._folder.iterdir():
            path.unlink()
        known = {row[0] for row in self._store.rows("SELECT id FROM files")}
        for batch in self._store.open_batches():
            known |= {batch.output_file_id, batch.error_file_id}
        for path in self._store.path_of("x").parent.iterdir():
            if path.name not in known:
                path.unlink()

    def begin(self, owner: str) -> str:
        """Start an upload and return its id; give up uploads that are idle for `IDLE_S`."""
        now_s = time.monotonic()
        for upload_id, upload in tuple(self._uploads.items()):
            if now_s - upload.touched_s > IDLE_S:
                self.abandon(upload_id)
        upload_id = f"file-{uuid.uuid4().hex}"
        self._uploads[upload_id] = _Upload(owner, self._folder / upload_id, 0, now_s)
        return upload_id

    def add(self, upload_id: str, data: bytes) -> None:
        """Append `data`.

        Raises ContentTooLarge, StorageQuotaExceeded, StorageFailed; NotFound after a restart.
        """
        upload = self._upload(upload_id)
        if upload.num_bytes + len(data) > self._max_bytes:
            raise ContentTooLarge(f"the file is over {self._max_bytes} bytes", "file")
        with self._store.lock:
            # of other uploads too, whose bytes are in no file yet
            coming = sum(
                each.num_bytes + each.num_coming
                for each in tuple(self._uploads.values())
                if each.owner == upload.owner
            )
            self._quota.check(upload.owner, coming + len(data))
            upload.num_coming = len(data)
        try:
            write_at(upload.path, upload.num_bytes, data)
            upload.num_bytes += len(data)
        finally:
            upload.num_coming = 0
        upload.touched_s = time.monotonic()

    def finish(
        self, upload_id: str, name: str, purpose: str, now: int, lifetime_s: int | None = None
    ) -> StoredFile:
        """Make the upload a file, on the disk. lifetime_s: until it expires. Raises as `add`."""
        upload = self._upload(upload_id)
        cut(upload.path, upload.num_bytes)
        expires_at = None if lifetime_s is None else now + lifetime_s
        file = StoredFile(upload_id, upload.owner, purpose, name, upload.num_bytes, now, expires_at)
        with self._store.lock:
            with self._store.writing() as connection:
                connection.execute(
                    f"INSERT INTO files ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (upload_id, upload.owner, purpose, name, upload.num_bytes, now, expires_at),
                )
                try:
                    upload.path.rename(self._store.path_of(upload_id))
                except OSError as error:
                    raise StorageFailed(upload.path, error.strerror or str(error)) from error
            del self._uploads[upload_id]
        return file

    def abandon(self, upload_id: str) -> None:
        """Forget an upload. Idempotent."""
        upload = self._uploads.pop(upload_id, None)
        if upload is not None:
            upload.path.unlink(missing_ok=True)

    def _upload(self, upload_id: str) -> _Upload:
        if upload_id not in self._uploads:
            raise NotFound("the upload was given up: send the file again", "file")
        return self._uploads[upload_id]

    def get(self, owner: str, file_id: str) -> StoredFile:
        """Return the owner's file. Raises NotFound."""
        sql = f"SELECT {_COLUMNS} FROM files WHERE id = ? AND owner = ? AND {_IS_THERE}"
        rows = self._store.rows(sql, file_id, owner, self._clock())
        if not rows:
            raise NotFound(f"no file {file_id[:80]!r}", "file_id")
        return StoredFile(*rows[0])

    def listed(self, owner: str, page: FilePage) -> Sequence[StoredFile]:
        """Return the owner's files. Raises NotFound if `page.after` is none of them."""
        if page.after is not None:
            self.get(owner, page.after)
        sign, direction = ("<", "DESC") if page.is_newest_first else (">", "ASC")
        sql = (
            f"SELECT {_COLUMNS} FROM files WHERE owner = ? AND {_IS_THERE} AND "
            "purpose = coalesce(?, purpose) AND "
            f"(? IS NULL OR rowid {sign} (SELECT rowid FROM files WHERE id = ?)) "
            f"ORDER BY rowid {direction} LIMIT ?"
        )
        values = (owner, self._clock(), page.purpose, page.after, page.after, page.count)
        rows = self._store.rows(sql, *values)
        return [StoredFile(*row) for row in rows]

    def delete(self, owner: str, file_id: str) -> None:
        """Delete a file. Raises NotFound, InvalidValue while a batch reads it, StorageFailed."""
        with self._store.lock:
            self.get(owner, file_id)
            for batch in self._store.open_batches():
                if batch.order.input_file_id == file_id:
                    message = f"{batch.batch_id} still reads it: cancel that first"
                    raise InvalidValue(message, "file_id")
            with self._store.writing() as connection:
                connection.execute("DELETE FROM files WHERE id = ?", (file_id,))
            self._store.path_of(file_id).unlink(missing_ok=True)

    def expire(self) -> int:
        """Delete the expired files that no open batch reads; return their number.

        Raises StorageFailed.
        """
        sql = "SELECT id FROM files WHERE expires_at <= ?"
        with self._store.lock:
            expired = {row[0] for row in self._store.rows(sql, self._clock())}
            if not expired:
                return 0
            expired -= {each.order.input_file_id for each in self._store.open_batches()}
            with self._store.writing() as connection:
                connection.executemany(
                    "DELETE FROM files WHERE id = ?", [(file_id,) for file_id in expired]
                )
            for file_id in expired:
                self._store.path_of(file_id).unlink(missing_ok=True)
        return len(expired)

    def read(self, owner: str, file_id: str, offset: int, count: int) -> bytes:
        """Return at most `count` bytes from `offset` on; none at the end. Raises NotFound."""
        self.get(owner, file_id)
        try:
            with self._store.path_of(file_id).open("rb") as file:
                file.seek(offset)
                return file.read(count)
        except FileNotFoundError:
            raise NotFound(f"file {file_id!r} was deleted", "file_id") from None
