"""Tells the row with which the server of masks dies from rows that were beside it."""

import hashlib
import mmap
import threading

from muxcluster.constraints.rows import MaskRow

# A row with which the server died so often, without an answer in between, is not tried again. One
# death may be anybody's: a kill from outside, or the row of another connection.
MOST_DEATHS = 3
_DIGEST = 15
_RECORD = _DIGEST + 1  # and a count
_PLACES = 128  # connections whose rows are noted, and rows that are suspected


class Blame:
    """Notes in memory that outlives the server which rows it works on.

    Made before the server is forked; each thread of the server notes its row.
    """

    def __init__(self) -> None:
        self._busy = mmap.mmap(-1, _PLACES * _RECORD)
        self._suspects = mmap.mmap(-1, _PLACES * _RECORD)
        self._lock = threading.Lock()
        self._places: dict[int, int] = {}  # by thread
        self._digests: dict[int, tuple[MaskRow, bytes]] = {}  # by thread, of its row

    def begin(self, row: MaskRow) -> bool:
        """Note that this thread begins with the row; return False if it must not."""
        digest = _digest(row)
        self._digests[threading.get_ident()] = row, digest
        at = _find(self._suspects, digest)
        if at is not None and self._suspects[at + _DIGEST] >= MOST_DEATHS:
            return False
        place = self._place()
        if place is not None:
            self._busy[place : place + _RECORD] = digest + b"\x01"
        return True

    def end(self, row: MaskRow) -> None:
        """Note that this thread has the row's mask."""
        place = self._place()
        if place is not None:
            self._busy[place : place + _RECORD] = bytes(_RECORD)
        begun = self._digests.get(threading.get_ident())
        digest = begun[1] if begun is not None and begun[0] is row else _digest(row)
        at = _find(self._suspects, digest)
        if at is not None:
            self._suspects[at : at + _RECORD] = bytes(_RECORD)

    def leave(self) -> None:
        """This thread ends."""
        with self._lock:
            self._places.pop(threading.get_ident(), None)
            self._digests.pop(threading.get_ident(), None)

    def server_died(self) -> None:
        """Suspect the rows that the server worked on. In the process that forks."""
        for place in range(0, len(self._busy), _RECORD):
            digest = self._busy[place : place + _DIGEST]
            self._busy[place : place + _RECORD] = bytes(_RECORD)
            if digest == bytes(_DIGEST):
                continue
            at = _find(self._suspects, digest)
            at = _find(self._suspects, bytes(_DIGEST)) if at is None else at
            if at is None:
                at = 0  # all places are taken by rows that did not come back
            is_same = self._suspects[at : at + _DIGEST] == digest
            count = self._suspects[at + _DIGEST] + 1 if is_same else 1
            self._suspects[at : at + _RECORD] = digest + bytes([min(count, 255)])

    def _place(self) -> int | None:
        """Return this thread's place; None if there are too many threads."""
        thread = threading.get_ident()
        with self._lock:
            if thread not in self._places:
                taken = set(self._places.values())
                free = (at for at in range(0, len(self._busy), _RECORD) if at not in taken)
                found = next(free, None)
                if found is None:
                    return None
                self._places[thread] = found
            return self._places[thread]


def _digest(row: MaskRow) -> bytes:
    text = f"{row.model}\n{row.request_id}".encode(errors="surrogatepass")
    return hashlib.blake2b(text, digest_size=_DIGEST).digest()


def _find(records: mmap.mmap, digest: bytes) -> int | None:
    """Return where the record with `digest` begins."""
    at = records.find(digest)
    while at != -1 and at % _RECORD:
        at = records.find(digest, at + 1)
    return None if at == -1 else at
