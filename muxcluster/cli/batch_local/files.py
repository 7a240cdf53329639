"""Files of a job that runs on this machine: input, output, state."""

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from muxcluster.batch.store.job import OPEN, Batch, Order, Status
from muxcluster.batch.store.store import BatchStore
from muxcluster.core.errors import ConfigError, StorageFailed
from muxcluster.workload.files.put import put

BATCH, INPUT = "run", "input"
_OWNER = "local"
_READ_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """Where the results of a job are written."""

    output: Path  # answers

    @property
    def errors(self) -> Path:
        """Where the errors of the other lines are written, beside the output."""
        return self.output.with_name(f"{self.output.stem}.errors{self.output.suffix}")

    def check_free(self) -> None:
        """Raise ConfigError if a result file exists, or `output` names no file."""
        if not self.output.name or "\0" in str(self.output):
            raise ConfigError("--output", "", f"{str(self.output)!r} is not the name of a file")
        for path in (self.output, self.errors):
            if path.exists():
                raise ConfigError(path, "", "is there already: move it, or choose another --output")


@dataclass(frozen=True, slots=True)
class JobFiles(ResultFiles):
    """The input and output files of a job."""

    input: Path  # JSON lines

    @property
    def state(self) -> Path:
        """Folder of the job's state, from its start to its end."""
        return self.output.with_name(f"{self.output.name}.batch")


@contextmanager
def opened(files: JobFiles, now: int) -> Iterator[tuple[BatchStore, Batch]]:
    """Open the job in its folder: a new one, or one that was interrupted.

    Raises ConfigError if the output exists already, the folder holds a job of another input, or
    another process runs it; StorageFailed.
    """
    digest = _digest(files.input)
    if not (files.output.name and files.state.exists()):
        files.check_free()
    store = BatchStore(files.state)
    try:
        try:
            batch = store.get(BATCH)
        except KeyError:
            _link(store.path_of(INPUT), files.input)
            order = Order(_OWNER, INPUT, None, metadata={"sha256": digest})
            batch = store.create(order, now, BATCH)
        if batch.order.metadata["sha256"] != digest:
            message = f"holds a job of another input than {files.input}: delete it to start anew"
            raise ConfigError(files.state, "", message)
        yield store, batch
    finally:
        store.close()


def deliver(files: JobFiles, store: BatchStore, batch: Batch) -> None:
    """Move the files of an ended batch to their places and delete the job's state.

    May be interrupted and called again. A failed batch leaves no output file. Raises StorageFailed.
    """
    assert batch.status not in OPEN
    if batch.status is not Status.FAILED:
        _move(store.path_of(batch.output_file_id), files.output)
    if batch.error_bytes:
        _move(store.path_of(batch.error_file_id), files.errors)
    store.close()
    shutil.rmtree(files.state)


def _link(link: Path, file: Path) -> None:
    try:
        link.unlink(missing_ok=True)
        link.symlink_to(file.absolute())
    except OSError as error:
        raise StorageFailed(link, error.strerror or str(error)) from error


def _move(made: Path, place: Path) -> None:
    try:
        if made.exists():
            put(made, place)
        elif not place.exists():
            place.touch()
    except OSError as error:
        raise StorageFailed(place, error.strerror or str(error)) from error


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_READ_BYTES):
                found.update(chunk)
    except OSError as error:
        raise ConfigError(path, "", f"cannot be read: {error.strerror}") from error
    return found.hexdigest()
