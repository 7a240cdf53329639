"""Rows of a prefix-shared attention as numbers, cut into tiles of queries (CPU path)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

# Queries of one row handled at once: bounds the scores and skips keys they cannot see.
TILE_TOKENS = 64


class Tile(NamedTuple):
    """Consecutive queries of one row, and its distinct keys begin <= position < end."""

    queries: int
    columns: int  # blocks per KV head that hold the keys; tiles sort by queries, then columns
    token: int  # the first query; the last one is at position end - 1
    table_row: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Arguments of `prefix_attention` read on the host, all lists of numbers."""

    groups: list[int]  # offsets [groups + 1] over rows
    offsets: list[int]  # [rows + 1] over queries
    prefixes: list[int]  # [groups]
    # ends, table_rows: [rows]
    ends: list[int]
    table_rows: list[int]

    @classmethod
    def read(
        cls,
        table_rows: Tensor,
        lengths: Tensor,
        group_offsets: Tensor,
        prefix_lengths: Tensor,
        query_offsets: Tensor | None,
        num_tokens: int,
    ) -> "GroupedRows":
        """Read the arguments. Raises ValueError for offsets that do not rise as they must."""
        groups = _bounds("group_offsets", group_offsets, len(table_rows))
        offsets = list(range(num_tokens + 1))
        if query_offsets is not None:
            offsets = _bounds("query_offsets", query_offsets, num_tokens)
        return cls(groups, offsets, prefix_lengths.tolist(), lengths.tolist(), table_rows.tolist())

    def check(self, block_tokens: int, columns: int) -> None:
        """Raise ValueError for rows beyond their table or prefixes that not every query sees."""
        furthest = max(self.ends, default=0)
        if furthest > columns * block_tokens:
            raise ValueError(f"a row ends at {furthest}, beyond its table of {columns} columns")
        for prefix in self.prefixes:
            if prefix < 0 or prefix % block_tokens:
                raise ValueError(f"a prefix of {prefix} tokens is no multiple of {block_tokens}")
        for row, prefix in self.rows():
            seen = self.ends[row] - max(0, self.offsets[row + 1] - self.offsets[row] - 1)
            if prefix > seen:
                raise ValueError(f"row {row} sees only {seen} of its group's {prefix} tokens")

    def rows(self) -> Iterator[tuple[int, int]]:
        """Yield each row with the length of its group's prefix."""
        for group, prefix in enumerate(self.prefixes):
            for row in range(self.groups[group], self.groups[group + 1]):
                yield row, prefix

    def tiles(self, block_tokens: int) -> Iterator[Tile]:
        """Yield tiles of the rows' queries, except those without distinct keys."""
        for row, prefix in self.rows():
            start, stop = self.offsets[row], self.offsets[row + 1]
            for token in range(start, stop, TILE_TOKENS):
                last = min(token + TILE_TOKENS, stop)
                end = self.ends[row] - stop + last
                columns = -(-(end - prefix) // block_tokens)
                if columns > 0:
                    yield Tile(last - token, columns, token, self.table_rows[row], prefix, end)


def batches(tiles: list[Tile], budget: int) -> Iterator[list[Tile]]:
    """Cut sorted tiles so that a batch, padded to its widest, keeps to `budget` columns.

    All tiles of a batch have the same number of queries. One wider than the budget is alone.
    """
    start = 0
    for stop, tile in enumerate(tiles):
        full = (stop + 1 - start) * tile.columns > budget
        if stop > start and (full or tile.queries != tiles[start].queries):
            yield tiles[start:stop]
            start = stop
    if tiles:
        yield tiles[start:]


def _bounds(name: str, offsets: Tensor, stop: int) -> list[int]:
    """Return the offsets as numbers. Raises ValueError unless they rise from 0 to `stop`."""
    bounds: list[int] = offsets.tolist()
    if bounds[0] != 0 or bounds[-1] != stop or bounds != sorted(bounds):
        raise ValueError(f"{name} must rise from 0 to {stop}, got {bounds}")
    return bounds
