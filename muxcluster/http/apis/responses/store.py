"""Responses that are kept for their clients: a SQLite file with a row for each."""

import asyncio
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from muxcluster.core.errors import StorageFailed
from muxcluster.core.inputs.carried import Carried
from muxcluster.core.inputs.private import make_private_folder, open_private
from muxcluster.http.settings import StoreSettings

NAME = "responses.sqlite"
MOST_TURNS = 1000  # of a conversation
_DAY_S = 86_400
_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created_s INTEGER NOT NULL,
    deadline_s INTEGER NOT NULL, previous TEXT NOT NULL, is_open INTEGER NOT NULL,
    bytes INTEGER NOT NULL, input BLOB NOT NULL, response BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_owner ON responses (owner, created_s);
CREATE INDEX IF NOT EXISTS by_time ON responses (created_s);
"""
_COLUMNS = "id, owner, created_s, deadline_s, previous, is_open, input, response"
_ADD = f"INSERT INTO responses ({_COLUMNS}, bytes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_FIND = f"SELECT {_COLUMNS} FROM responses WHERE id = ? AND owner = ?"
_TURNS = f"""
WITH RECURSIVE turns(n, turn, before) AS (
    SELECT 0, id, previous FROM responses WHERE id = :id AND owner = :owner
    UNION ALL
    SELECT n + 1, r.id, r.previous FROM turns JOIN responses r ON r.id = before
        WHERE r.owner = :owner AND n < {MOST_TURNS}
)
SELECT {_COLUMNS} FROM turns JOIN responses ON id = turn ORDER BY n DESC
"""
_OVER = """
DELETE FROM responses WHERE id IN (
    SELECT id FROM (
        SELECT id, SUM(bytes) OVER (ORDER BY created_s DESC, id DESC) AS held
        FROM responses WHERE owner = :owner
    ) WHERE held > :most AND id <> :kept
)
"""
_END = """
UPDATE responses SET is_open = 0, response = :response, bytes = length(input) + length(:response)
WHERE id = :id AND owner = :owner AND is_open
"""


@dataclass(frozen=True, slots=True)
class StoredResponse(Carried):
    """A response and what it answers."""

    response_id: str
    owner: str  # digest of the key; empty where none is asked for
    created_s: int  # seconds since 1970
    deadline_s: int  # when one that is open has been lost, with the server that made it
    previous: str  # id of the response that it follows; empty for none
    is_open: bool  # it is being made in the background
    input: bytes  # JSON list of the items of this turn
    response: bytes  # JSON object, as it is answered


class ResponseStore(Protocol):
    """The one store of a cluster, as its ingresses see it.

    Every method raises Unavailable where it does not answer, StorageFailed where its disk refuses.
    """

    async def add(self, stored: StoredResponse) -> None:
        """Keep a new response."""
        ...

    async def end(self, owner: str, response_id: str, response: bytes) -> bool:
        """Give an open response its end; False, changing nothing, where none is open."""
        ...

    async def find(self, owner: str, response_id: str) -> StoredResponse | None:
        """Return one of the owner's responses; None if there is none, or it is another's."""
        ...

    async def turns(self, owner: str, response_id: str) -> list[StoredResponse]:
        """Return the conversation that ends with a response, oldest first; empty as `find`.

        The first follows none, unless those before it are gone.
        """
        ...

    async def delete(self, owner: str, response_id: str) -> bool:
        """Forget a response; False as `find`."""
        ...


class ResponseFile:
    """The file of all kept responses. One thread at a time."""

    def __init__(self, settings: StoreSettings) -> None:
        """Open the file, made if missing. Raises StorageFailed."""
        self._settings = settings
        directory = Path(settings.directory)
        self.path = directory / NAME
        try:
            make_private_folder(directory, (NAME, f"{NAME}-wal", f"{NAME}-shm"))
            os.close(open_private(self.path, os.O_RDWR))
        except OSError as error:
            raise StorageFailed(self.path, error.strerror or str(error)) from error
        with self._failures():
            self._connection = sqlite3.connect(
                self.path, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA journal_mode=WAL")
            # what is committed survives the end of the process; a power cut may take the last rows
            self._connection.execute("PRAGMA synchronous=NORMAL")
            # what is deleted is overwritten, not only unlinked
            self._connection.execute("PRAGMA secure_delete=ON")
            self._connection.executescript(_SCHEMA)

    def add(self, stored: StoredResponse) -> None:
        """Add a response; those that are too old go, and the oldest of its key over its bytes."""
        size = len(stored.input) + len(stored.response)
        values = (
            stored.response_id,
            stored.owner,
            stored.created_s,
            stored.deadline_s,
            stored.previous,
            stored.is_open,
            stored.input,
            stored.response,
            size,
        )
        oldest_s = stored.created_s - self._settings.days * _DAY_S
        over = {
            "owner": stored.owner,
            "most": self._settings.most_key_bytes,
            "kept": stored.response_id,
        }
        with self._writing():
            self._connection.execute("DELETE FROM responses WHERE created_s < ?", (oldest_s,))
            self._connection.execute(_ADD, values)
            self._connection.execute(_OVER, over)

    def end(self, owner: str, response_id: str, response: bytes) -> bool:
        """As `ResponseStore.end`."""
        values = {"id": response_id, "owner": owner, "response": response}
        with self._writing():
            return self._connection.execute(_END, values).rowcount > 0

    def find(self, owner: str, response_id: str) -> StoredResponse | None:
        """As `ResponseStore.find`."""
        with self._failures():
            row = self._connection.execute(_FIND, (response_id, owner)).fetchone()
        return None if row is None else _stored(row)

    def turns(self, owner: str, response_id: str) -> list[StoredResponse]:
        """As `ResponseStore.turns`."""
        values = {"id": response_id, "owner": owner}
        with self._failures():
            return [_stored(row) for row in self._connection.execute(_TURNS, values)]

    def delete(self, owner: str, response_id: str) -> bool:
        """As `ResponseStore.delete`."""
        asked = "DELETE FROM responses WHERE id = ? AND owner = ?"
        with self._writing():
            return self._connection.execute(asked, (response_id, owner)).rowcount > 0

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._connection.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Run the block in a transaction; if it raises, nothing is kept."""
        with self._failures():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                # a full disk may have rolled back already
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Raise SQLite's errors in the block as StorageFailed."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise StorageFailed(self.path, str(error)) from error


class LocalResponseStore:
    """A `ResponseStore` in this process; its file is used on threads, one at a time."""

    def __init__(self, settings: StoreSettings) -> None:
        """Raises StorageFailed."""
        self._file = ResponseFile(settings)
        self._lock = threading.Lock()

    async def add(self, stored: StoredResponse) -> None:
        def work() -> None:
            with self._lock:
                self._file.add(stored)

        await asyncio.to_thread(work)

    async def end(self, owner: str, response_id: str, response: bytes) -> bool:
        def work() -> bool:
            with self._lock:
                return self._file.end(owner, response_id, response)

        return await asyncio.to_thread(work)

    async def find(self, owner: str, response_id: str) -> StoredResponse | None:
        def work() -> StoredResponse | None:
            with self._lock:
                return self._file.find(owner, response_id)

        return await asyncio.to_thread(work)

    async def turns(self, owner: str, response_id: str) -> list[StoredResponse]:
        def work() -> list[StoredResponse]:
            with self._lock:
                return self._file.turns(owner, response_id)

        return await asyncio.to_thread(work)

    async def delete(self, owner: str, response_id: str) -> bool:
        def work() -> bool:
            with self._lock:
                return self._file.delete(owner, response_id)

        return await asyncio.to_thread(work)

    async def close(self) -> None:
        """Close the file when what uses it has ended. Idempotent."""

        def work() -> None:
            with self._lock:
                self._file.close()

        await asyncio.to_thread(work)


def _stored(row: Sequence[Any]) -> StoredResponse:
    response_id, owner, created_s, deadline_s, previous, is_open, given, response = row
    return StoredResponse(
        response_id, owner, created_s, deadline_s, previous, bool(is_open), given, response
    )
