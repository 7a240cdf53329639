"""Settings of the batch service."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """What batches may take. directory: where files and batches are kept, on the head node.

    max_file_bytes: of an upload. max_lines, max_line_bytes: of an input file; a longer line fails
    alone. max_running: lines of a model under way at a time.
    """

    directory: str
    max_file_bytes: int = 2 * 2**30
    max_lines: int = 1_000_000
    max_line_bytes: int = 32 * 2**20
    max_running: int = 128
