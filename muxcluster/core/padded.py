"""Memory of padded batches: what one may take, and what it was found to take."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowBytes:
    """Memory of one row: `fixed` bytes (states that do not grow) and `per_token` for each column.

    Padding takes as much as tokens do.
    """

    fixed: int
    per_token: int

    def of(self, num_rows: int, num_columns: int) -> int:
        """Bytes of a padded batch."""
        return num_rows * (self.fixed + self.per_token * num_columns)


@dataclass(frozen=True, slots=True)
class PaddedLimit:
    """Of a model whose batches are padded: what a row is foretold to take, and what one batch of
    one worker may."""

    row_bytes: RowBytes
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """A padded batch as it is. num_columns: padding included. num_bytes: as allocated."""

    num_rows: int
    num_columns: int
    num_bytes: int
