"""Settings of the batch service."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """Folder and limits of the batch service."""

    directory: str  # of files and batches, on the head node
    max_file_bytes: int = 2 * 2**30  # of an upload
    max_lines: int = 1_000_000  # of an input file
    max_line_bytes: int = 32 * 2**20  # a longer line fails, the others run
    max_running: int = 128  # lines of a model without a plan that run at a time
    max_key_bytes: int | None = None  # of all files of one API key; None: no limit
