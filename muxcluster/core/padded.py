"""Memory of padded batches: predicted, allowed and measured."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowBytes:
    """Memory of one row: `fixed` bytes (states that do not grow) and `per_token` for each column.

    Padding takes as much memory as tokens.
    """

    fixed: int
    per_token: int

    def of(self, num_rows: int, num_columns: int) -> int:
        """Bytes of a padded batch."""
        return num_rows * (self.fixed + self.per_token * num_columns)


@dataclass(frozen=True, slots=True)
class PaddedLimit:
    """Memory limit of the padded batches of one model."""

    row_bytes: RowBytes  # predicted for a row
    limit_bytes: int  # of one batch of one worker


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """Size of a padded batch."""

    num_rows: int
    num_columns: int  # padding included
    num_bytes: int  # as allocated
