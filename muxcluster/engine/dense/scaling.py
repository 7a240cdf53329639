"""How many queries a padded batch may hold: by the memory of its cache against a limit (§3.2)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowBytes:
    """Memory of one row: `fixed` bytes (states that do not grow) and `per_token` for each column.

    Padding takes as much as tokens do.
    """

    fixed: int
    per_token: int

    @classmethod
    def measured(cls, short: tuple[int, int], long: tuple[int, int]) -> "RowBytes":
        """From (tokens, bytes) of two rows without padding, `long` of more tokens."""
        per_token = (long[1] - short[1]) // (long[0] - short[0])
        return cls(short[1] - per_token * short[0], per_token)

    def of(self, num_rows: int, num_columns: int) -> int:
        """Bytes of a padded batch."""
        return num_rows * (self.fixed + self.per_token * num_columns)


@dataclass(frozen=True, slots=True)
class BatchScaling:
    """Scales a batch down before a step would take it over its limit, and up where there is room.

    limit_bytes: of the batch's cache. max_rows: at any memory. room: the share of the limit up to
    which queries come in; what is left keeps those that came from being saved at once again.
    Queries are mappings of number to cached tokens, in the order in which they came in; who came
    first stays, whatever its memory, so every batch gets on.
    """

    row_bytes: RowBytes
    limit_bytes: int
    max_rows: int
    room: float = 0.9

    def leaving(self, rows: Mapping[int, int]) -> list[int]:
        """Whom to save to host memory before the next step of `rows`: the last to come in."""
        stay = list(rows)
        while len(stay) > 1 and not self._fits(self.limit_bytes, [rows[query] for query in stay]):
            stay.pop()
        return list(rows)[len(stay) :]

    def entering(self, rows: Mapping[int, int], waiting: Mapping[int, int]) -> list[int]:
        """Which of `waiting`, in their order, the batch has room for; nobody overtakes.

        An empty batch takes the first, whatever its memory.
        """
        lengths, come = list(rows.values()), list[int]()
        for query, length in waiting.items():
            fits = len(lengths) < self.max_rows and self._fits(
                int(self.room * self.limit_bytes), [*lengths, length]
            )
            if lengths and not fits:
                break
            lengths.append(length)
            come.append(query)
        return come

    def _fits(self, limit_bytes: int, lengths: Sequence[int]) -> bool:
        """True where the batch stays within after one more token of each."""
        return self.row_bytes.of(len(lengths), max(lengths) + 1) <= limit_bytes
