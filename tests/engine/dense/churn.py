"""Queries that enter, leave, are preempted and resumed at random, through one padded batch."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.padded import RowBytes
from muxcluster.engine.dense.batch import DenseBatch, KeptRow
from muxcluster.engine.dense.model import DenseModel
from muxcluster.engine.dense.prefill import prefill


@dataclass(slots=True)
class Query:
    """A prompt and its greedy output so far."""

    prompt: list[int]
    num_tokens: int
    output: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> NDArray[np.int64]:
        return np.array(self.prompt + self.output)


@dataclass(slots=True)
class Counts:
    shaped: int = 0
    embedded: int = 0
    preempted: int = 0
    resumed: int = 0
    scaled: int = 0


def queries(vocab_size: int, count: int, *, seed: int) -> list[Query]:
    """Prompts of 1 to 40 tokens, outputs of 1 to 24."""
    rng = np.random.default_rng(seed)
    return [
        Query(rng.integers(0, vocab_size, rng.integers(1, 41)).tolist(), int(rng.integers(1, 25)))
        for _ in range(count)
    ]


def _row_bytes(model: DenseModel) -> RowBytes:
    found = prefill(model.forward, model.axes, [np.zeros(n, dtype=np.int64) for n in (5, 9)])
    short, long = (model.axes.num_bytes(each.row.cache) for each in found)
    per_token = (long - short) // 4
    return RowBytes(short - 5 * per_token, per_token)


class Churn:
    """Runs queries to their ends; what happens when is drawn from `seed`."""

    def __init__(self, model: DenseModel, asked: Sequence[Query], *, seed: int) -> None:
        self.counts = Counts()
        self._model = model
        self._rng = random.Random(seed)
        self._asked = asked
        self._waiting = list(range(len(asked)))
        self._saved: dict[int, KeptRow] = {}
        self._batch: DenseBatch = model.batch()
        self._most_rows = 4
        self._row_bytes = _row_bytes(model)

    def run(self) -> None:
        while self._waiting or self._saved or self._batch.queries:
            if self._rng.random() < 0.15:
                self._most_rows = self._rng.randint(1, 7)
                self.counts.scaled += 1
                self._preempt(max(0, len(self._batch.queries) - self._most_rows))
            if self._batch.queries and self._rng.random() < 0.15:
                self._preempt(1)
            if self._rng.random() < 0.7:
                self._resume()
            if self._model.takes_holes and self._rng.random() < 0.5:
                self._shape()
            else:
                self._embed()
                if self._batch.queries:
                    self._take(self._batch.step(self._last()))
            self._check()

    def _check(self) -> None:
        """What the bookkeeping says is what tensors hold; without holes no column is too many."""
        padding = self._batch.padding
        padding.check()
        assert self._batch.num_bytes == self._row_bytes.of(padding.num_rows, padding.length)
        if not self._model.takes_holes:
            assert padding.length == max(padding.lengths, default=0)

    @property
    def _num_free(self) -> int:
        return max(0, self._most_rows - len(self._batch.queries))

    def _last(self) -> dict[int, int]:
        return {query: self._asked[query].output[-1] for query in self._batch.queries}

    def _admitted(self) -> dict[int, NDArray[np.int64]]:
        most = min(self._num_free, len(self._waiting))
        chosen = self._rng.sample(self._waiting, self._rng.randint(0, most))
        self._waiting = [query for query in self._waiting if query not in chosen]
        return {query: self._asked[query].tokens for query in chosen}

    def _shape(self) -> None:
        prompts = self._admitted()
        if not prompts:
            return
        self.counts.shaped += len(prompts)
        self._take(self._batch.shape(self._last(), prompts))

    def _embed(self) -> None:
        prompts = self._admitted()
        model = self._model
        found = prefill(
            model.forward, model.axes, list(prompts.values()), most_padding=model.most_padding
        )
        for query, each in zip(prompts, found, strict=True):
            self._asked[query].output.append(int(each.logits.argmax()))
        self._batch.embed(dict(zip(prompts, [each.row for each in found], strict=True)))
        self.counts.embedded += len(prompts)
        self._remove_ended()

    def _preempt(self, count: int) -> None:
        for query in self._rng.sample(self._batch.queries, count):
            self._saved[query] = self._batch.saved(query)
            self._batch.keep([each for each in self._batch.queries if each != query])
            self.counts.preempted += 1

    def _resume(self) -> None:
        chosen = self._rng.sample(list(self._saved), min(self._num_free, len(self._saved)))
        self._batch.embed({query: self._saved.pop(query) for query in chosen})
        self.counts.resumed += len(chosen)

    def _take(self, logits: object) -> None:
        for query, row in zip(self._batch.queries, logits, strict=True):  # type: ignore[call-overload]
            self._asked[query].output.append(int(row.argmax()))
        self._remove_ended()

    def _remove_ended(self) -> None:
        def goes_on(query: int) -> bool:
            return len(self._asked[query].output) < self._asked[query].num_tokens

        self._batch.keep([query for query in self._batch.queries if goes_on(query)])
