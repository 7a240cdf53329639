"""Responses that are kept for their clients: a SQLite file with a row for each."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from muxcluster.core.errors import StorageFailed
from muxcluster.core.inputs.carried import Carried
from muxcluster.core.inputs.sqlite_file import SqliteFile
from muxcluster.http.settings import StoreSettings

logger = logging.getLogger(__name__)

NAME = "responses.sqlite"
MOST_TURNS = 1000  # of a conversation
MOST_TURN_BYTES = 32 * 2**20  # of a conversation, beside its last turn
FORGET_S = 3600.0  # how often those that are too old are deleted, where none is added
_DAY_S = 86_400
_FORM = 1  # grows with a change that the version before cannot work with
# `held` has the sum of an owner's `bytes`. Columns of a row that are long come last: what reads the
# others only does not read their pages.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created_s INTEGER NOT NULL,
    deadline_s INTEGER NOT NULL, previous TEXT NOT NULL, is_open INTEGER NOT NULL,
    bytes INTEGER NOT NULL, input BLOB NOT NULL, response BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_owner ON responses (owner, created_s);
CREATE INDEX IF NOT EXISTS by_time ON responses (created_s);
CREATE TABLE IF NOT EXISTS held (owner TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS held_added AFTER INSERT ON responses BEGIN
    INSERT OR IGNORE INTO held VALUES (NEW.owner, 0);
    UPDATE held SET bytes = bytes + NEW.bytes WHERE owner = NEW.owner;
END;
CREATE TRIGGER IF NOT EXISTS held_changed AFTER UPDATE OF bytes ON responses BEGIN
    UPDATE held SET bytes = bytes + NEW.bytes - OLD.bytes WHERE owner = NEW.owner;
END;
CREATE TRIGGER IF NOT EXISTS held_deleted AFTER DELETE ON responses BEGIN
    UPDATE held SET bytes = bytes - OLD.bytes WHERE owner = OLD.owner;
    DELETE FROM held WHERE owner = OLD.owner AND bytes = 0;
END;
"""
_COLUMNS = "id, owner, deadline_s, previous, is_open, input, response"
_ADD = f"""
INSERT INTO responses ({_COLUMNS}, created_s, bytes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING
"""
_ONE = "FROM responses WHERE id = :id AND owner = :owner AND created_s >= :oldest"
_TURNS = f"""
WITH RECURSIVE turns(n, turn, before, held) AS (
    SELECT 1, id, previous, 0 {_ONE}
    UNION ALL
    SELECT n + 1, r.id, r.previous, held + r.bytes FROM turns JOIN responses r ON r.id = before
        WHERE r.owner = :owner AND r.created_s >= :oldest
        AND n < {MOST_TURNS} AND held + r.bytes <= {MOST_TURN_BYTES}
)
SELECT {_COLUMNS} FROM turns JOIN responses ON id = turn ORDER BY n DESC
"""
_OLDEST_OTHER = """
DELETE FROM responses WHERE id = (
    SELECT id FROM responses WHERE owner = ? AND id <> ? ORDER BY created_s, id LIMIT 1
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
    # seconds since 1970, when one that is open has been lost, with the server that made it
    deadline_s: int
    previous: str  # id of the response that it follows; empty for none
    is_open: bool  # it is being made in the background
    input: bytes  # JSON list of the items of this turn
    response: bytes  # JSON object, as it is answered


class ResponseStore(Protocol):
    """The one store of a cluster, as its ingresses see it.

    Every method raises Unavailable where it does not answer, StorageFailed where its disk refuses.
    """

    async def add(self, stored: StoredResponse) -> None:
        """Keep a new response; one that is there already stays as it is."""
        ...

    async def end(self, owner: str, response_id: str, response: bytes) -> bool:
        """Give an open response its end; False, changing nothing, where none is open."""
        ...

    async def find(self, owner: str, response_id: str) -> StoredResponse | None:
        """Return one of the owner's responses; None if there is none, or it is another's."""
        ...

    async def is_open(self, owner: str, response_id: str) -> bool | None:
        """Return whether a response is being made; None as `find`."""
        ...

    async def turns(self, owner: str, response_id: str) -> list[StoredResponse]:
        """Return the conversation that ends with a response, oldest first; empty as `find`.

        The first follows none, unless those before it are gone, or are more than MOST_TURNS or
        MOST_TURN_BYTES with it.
        """
        ...

    async def delete(self, owner: str, response_id: str) -> bool:
        """Forget a response; False as `find`."""
        ...


class ResponseFile:
    """The file of all kept responses. One thread at a time."""

    def __init__(self, settings: StoreSettings, clock: Callable[[], float] = time.time) -> None:
        """Open the file, made if missing, and delete what is too old. Raises StorageFailed.

        clock: seconds since 1970.
        """
        self._settings = settings
        self._clock = clock
        # what is committed survives the end of the process; a power cut may take the last rows
        # what is deleted is overwritten, not only unlinked
        pragmas = {"synchronous": "NORMAL", "secure_delete": "ON"}
        self._file = SqliteFile(Path(settings.directory) / NAME, _SCHEMA, _FORM, pragmas)
        self.forget_old()

    def add(self, stored: StoredResponse) -> None:
        """Add a response; those that are too old go, and the oldest of its key over its bytes."""
        values = (
            stored.response_id,
            stored.owner,
            stored.deadline_s,
            stored.previous,
            stored.is_open,
            stored.input,
            stored.response,
            int(self._clock()),
            len(stored.input) + len(stored.response),
        )
        with self._file.writing():
            self._delete_old()
            self._file.connection.execute(_ADD, values)
            self._make_room(stored.owner, stored.response_id)

    def end(self, owner: str, response_id: str, response: bytes) -> bool:
        """As `ResponseStore.end`."""
        values = {"id": response_id, "owner": owner, "response": response}
        with self._file.writing():
            is_ended = self._file.connection.execute(_END, values).rowcount > 0
            self._make_room(owner, response_id)
        return is_ended

    def find(self, owner: str, response_id: str) -> StoredResponse | None:
        """As `ResponseStore.find`."""
        with self._file.failures():
            asked = self._asked(owner, response_id)
            row = self._file.connection.execute(f"SELECT {_COLUMNS} {_ONE}", asked).fetchone()
        return None if row is None else _stored(row)

    def is_open(self, owner: str, response_id: str) -> bool | None:
        """As `ResponseStore.is_open`."""
        with self._file.failures():
            asked = self._asked(owner, response_id)
            row = self._file.connection.execute(f"SELECT is_open {_ONE}", asked).fetchone()
        return None if row is None else bool(row[0])

    def turns(self, owner: str, response_id: str) -> list[StoredResponse]:
        """As `ResponseStore.turns`."""
        with self._file.failures():
            asked = self._asked(owner, response_id)
            return [_stored(row) for row in self._file.connection.execute(_TURNS, asked)]

    def forget_old(self) -> None:
        """Delete the responses that are too old."""
        with self._file.writing():
            self._delete_old()

    def _asked(self, owner: str, response_id: str) -> dict[str, object]:
        return {"id": response_id, "owner": owner, "oldest": self._oldest_s()}

    def _oldest_s(self) -> int:
        """Return when the oldest response that is not too old can have been added."""
        return int(self._clock()) - self._settings.days * _DAY_S

    def _delete_old(self) -> None:
        asked = "DELETE FROM responses WHERE created_s < ?"
        self._file.connection.execute(asked, (self._oldest_s(),))

    def _make_room(self, owner: str, kept_id: str) -> None:
        """Delete an owner's oldest until they hold no more than they may, or one is left."""
        asked = "SELECT 1 FROM held WHERE owner = ? AND bytes > ?"
        most = self._settings.most_key_bytes
        while self._file.connection.execute(asked, (owner, most)).fetchone() is not None:
            if not self._file.connection.execute(_OLDEST_OTHER, (owner, kept_id)).rowcount:
                return

    def delete(self, owner: str, response_id: str) -> bool:
        """As `ResponseStore.delete`."""
        asked = "DELETE FROM responses WHERE id = ? AND owner = ?"
        with self._file.writing():
            return self._file.connection.execute(asked, (response_id, owner)).rowcount > 0

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()


class LocalResponseStore:
    """A `ResponseStore` in this process; its file is used on threads, one at a time."""

    def __init__(self, settings: StoreSettings) -> None:
        """Raises StorageFailed."""
        self._file = ResponseFile(settings)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._forget, name="old responses", daemon=True).start()

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

    async def is_open(self, owner: str, response_id: str) -> bool | None:
        def work() -> bool | None:
            with self._lock:
                return self._file.is_open(owner, response_id)

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
            self._closed.set()
            with self._lock:
                self._file.close()

        await asyncio.to_thread(work)

    def _forget(self) -> None:
        """Delete what is too old, once in a while: a store that nobody adds to has days, too."""
        while not self._closed.wait(FORGET_S):
            try:
                with self._lock:
                    if not self._closed.is_set():
                        self._file.forget_old()
            except StorageFailed as error:
                logger.error("old responses are not deleted: %s", error)


def _stored(row: Sequence[Any]) -> StoredResponse:
    response_id, owner, deadline_s, previous, is_open, given, response = row
    return StoredResponse(response_id, owner, deadline_s, previous, bool(is_open), given, response)
