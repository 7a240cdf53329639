"""Running padded batch whose queries come and go between forwards (BATON §4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.engine.dense.axes import CacheAxes
from muxcluster.engine.dense.forward import DenseForward
from muxcluster.engine.dense.padding import Padding

HOST = torch.device("cpu")


@dataclass(frozen=True, slots=True, eq=False)
class KeptRow:
    """A query outside of a batch: the cache of its `length` tokens, one row without padding."""

    length: int
    cache: Any


class DenseBatch:
    """Queries by number, each a row of one cache; the caller decides which queries are in it."""

    def __init__(self, forward: DenseForward, axes: CacheAxes) -> None:
        self._forward = forward
        self._axes = axes
        self._cache: Any | None = None
        self.queries: tuple[int, ...] = ()  # in the order of rows
        self.padding = Padding.none()

    @property
    def cache(self) -> Any:
        """The cache of all rows, in the order of `queries`; read-only, invalid after the next call.

        There must be rows.
        """
        assert self.queries, "a batch without rows has no cache"
        return self._cache

    @property
    def num_bytes(self) -> int:
        """Memory of the cache, as allocated."""
        return 0 if self._cache is None else self._axes.num_bytes(self._cache)

    @property
    def lengths(self) -> dict[int, int]:
        """Tokens whose keys and values are in the cache, by query, in the order of rows."""
        return dict(zip(self.queries, self.padding.lengths.tolist(), strict=True))

    def step(self, tokens: Mapping[int, int]) -> Tensor:
        """Compute one more token of every query; fp32 [rows, vocab] in the order of `queries`."""
        ids = np.array([[tokens[query]] for query in self.queries], dtype=np.int64)
        padding = self.padding.appended(np.ones(len(ids), dtype=np.int64))
        return self._run(ids, padding, self._cache)

    def shape(
        self, tokens: Mapping[int, int], prompts: Mapping[int, NDArray[np.integer]]
    ) -> Tensor:
        """Vector shaping (§4.1): prefill new queries in the forward of the others' next token.

        Returns fp32 [rows, vocab], old rows first. Only for models that take padding inside a row.
        """
        lengths = [len(prompt) for prompt in prompts.values()]
        padding = self.padding.appended(np.ones(len(self.queries), dtype=np.int64), lengths)
        rows = [np.array([tokens[query]]) for query in self.queries] + list(prompts.values())
        ids = end_aligned(rows, padding.length - self.padding.length)
        cache = self._cache and self._axes.widened(self._cache, len(lengths))
        self.queries = (*self.queries, *prompts)
        return self._run(ids, padding, cache)

    def embed(self, rows: Mapping[int, KeptRow]) -> None:
        """Vector embedding (§4.2): insert queries whose tokens were computed elsewhere.

        Their ends are aligned with those of the batch, which is padded on its left where they are
        longer.
        """
        if not rows:
            return
        padding = self.padding.embedded([row.length for row in rows.values()])
        caches = [] if self._cache is None else [self._cache]
        caches += [row.cache for row in rows.values()]
        self._cache = self._axes.joined(caches, padding.length, self._forward.device)
        self.queries, self.padding = (*self.queries, *rows), padding

    def keep(self, queries: Sequence[int]) -> None:
        """Keep only `queries`, in this order, and release the padding that they have in common."""
        if tuple(queries) == self.queries:
            return
        if not queries:
            self._cache, self.queries, self.padding = None, (), Padding.none()
            return
        rows = [self.queries.index(query) for query in queries]
        padding, columns = self.padding.selected(rows)
        self._cache = self._axes.selected(self._cache, rows, columns.tolist())
        self.queries, self.padding = tuple(queries), padding

    def saved(self, query: int) -> KeptRow:
        """Return what `embed` needs to continue a query, in host memory; the query stays."""
        row = self.queries.index(query)
        _, columns = self.padding.selected([row])
        cache = self._axes.selected(self._cache, [row], columns.tolist())
        return KeptRow(len(columns), self._axes.copied(cache, HOST))

    def _run(self, ids: NDArray[np.int64], padding: Padding, cache: Any | None) -> Tensor:
        output = self._forward.run(ids, padding, cache)
        self._cache, self.padding = output.cache, padding
        return output.logits


def end_aligned(rows: Sequence[NDArray[np.integer]], width: int) -> NDArray[np.int64]:
    """Return int64 [rows, width], with zeros on the left."""
    ids = np.zeros((len(rows), width), dtype=np.int64)
    for i, row in enumerate(rows):
        ids[i, width - len(row) :] = row
    return ids
