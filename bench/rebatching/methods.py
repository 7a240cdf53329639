"""The methods that bench/dense.py compares, each running the same queries on the same model."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from bench.rebatching.queries import Query
from bench.rebatching.scaling import BatonScaling
from bench.rebatching.trace import Trace
from muxcluster.core.padded import RowBytes
from muxcluster.engine.dense.batch import KeptRow
from muxcluster.engine.dense.forward import Foreign
from muxcluster.engine.dense.model import DenseModel
from muxcluster.engine.dense.prefill import Prefilled, prefill

PAD = 2


def groups(queries: Sequence[Query], size: int) -> Iterator[tuple[int, Sequence[Query]]]:
    """`size` queries at a time in their order, with the number of the first."""
    for first in range(0, len(queries), size):
        yield first, queries[first : first + size]


class _Watch(StoppingCriteria):
    """Notes what `generate` has done after each step, and ends it with its longest row."""

    def __init__(self, trace: Trace, lengths: Sequence[int], row_bytes: RowBytes) -> None:
        self._trace = trace
        self._lengths = lengths
        self._row_bytes = row_bytes
        self._num_done = 0

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        rows, columns = input_ids.shape
        self._num_done += 1
        self._trace.hold(self._row_bytes.of(rows, columns - 1))
        self._trace.end(self._lengths.count(self._num_done))
        return torch.full((rows,), self._num_done >= max(self._lengths))


def static(
    model: Foreign, row_bytes: RowBytes, queries: Sequence[Query], batch: int, trace: Trace
) -> None:
    """`generate` of transformers on one padded batch after the other. An answer is out with its
    last token; its row stays until the batch ends."""
    for first, group in groups(queries, batch):
        width = max(len(query.prompt) for query in group)
        gaps = [width - len(query.prompt) for query in group]
        ids = [[PAD] * gap + query.prompt for gap, query in zip(gaps, group, strict=True)]
        mask = [[0] * gap + [1] * (width - gap) for gap in gaps]
        lengths = [query.num_tokens for query in group]
        output = model.generate(
            input_ids=torch.tensor(ids),
            attention_mask=torch.tensor(mask),
            generation_config=GenerationConfig(
                max_new_tokens=max(lengths), do_sample=False, eos_token_id=-1, pad_token_id=PAD
            ),
            stopping_criteria=StoppingCriteriaList([_Watch(trace, lengths, row_bytes)]),
        )
        for number, (row, length) in enumerate(zip(output.tolist(), lengths, strict=True), first):
            trace.tokens[number] = row[width : width + length]
    trace.hold(0)


def decoupled(model: DenseModel, queries: Sequence[Query], batch: int, trace: Trace) -> None:
    """P&D only: prompts of similar lengths are prefilled together, then decoded as one batch,
    whose rows stay until it ends."""
    for first, group in groups(queries, batch):
        found = prefilled(model, [np.array(query.prompt) for query in group])
        running = model.batch()
        running.embed({number: each.row for number, each in enumerate(found, first)})
        last = {number: int(each.logits.argmax()) for number, each in enumerate(found, first)}
        for done in range(1, max(query.num_tokens for query in group) + 1):
            lives = [number for number in last if queries[number].num_tokens >= done]
            for number in lives:
                trace.tokens[number].append(last[number])
            trace.end(sum(queries[number].num_tokens == done for number in lives))
            trace.hold(running.num_bytes)
            if any(queries[number].num_tokens > done for number in lives):
                logits = running.step(last)
                last = dict(zip(running.queries, logits.argmax(dim=1).tolist(), strict=True))
    trace.hold(0)


def prefilled(model: DenseModel, prompts: Sequence[NDArray[np.integer]]) -> list[Prefilled]:
    """As the model allows: padded or not."""
    return prefill(model.forward, model.axes, prompts, most_padding=model.most_padding)


class Baton:
    """Queries leave the batch as they end and others come in between forwards.

    ahead: queries to prefill at once beside the batch, for when rows become free (P&D); None:
    prompts are shaped in, and prefilled in a forward of the batch.
    """

    def __init__(self, model: DenseModel, scaling: BatonScaling, *, ahead: int | None) -> None:
        self._model = model
        self._scaling = scaling
        self._ahead = ahead
        self.num_saved = 0

    def run(self, queries: Sequence[Query], trace: Trace) -> None:
        """All `queries`, in their order."""
        self._queries, self._trace = queries, trace
        self._prompts = {number: np.array(query.prompt) for number, query in enumerate(queries)}
        self._ready: dict[int, KeptRow] = {}
        self._batch = self._model.batch()
        while self._prompts or self._ready or self._batch.queries:
            saved = self._scale_down()
            shaped = {} if saved else self._fill()
            if shaped:
                self._take(self._batch.shape(self._last(), shaped))
            elif self._batch.queries:
                self._take(self._batch.step(self._last()))
        trace.hold(0)

    def _fill(self) -> dict[int, NDArray[np.int64]]:
        """Embeds who is ready and fits; returns prompts to shape in."""
        if self._ahead is None and not self._ready:
            return self._entering_prompts()
        if not self._ready and self._prompts and self._has_room():
            self._prefill(self._ahead or 1)
        lengths = {query: row.length for query, row in self._ready.items()}
        come = self._scaling.entering(self._batch.lengths, lengths)
        self._batch.embed({query: self._ready.pop(query) for query in come})
        return {}

    def _has_room(self) -> bool:
        """For the next prompt."""
        query = next(iter(self._prompts))
        return bool(self._scaling.entering(self._batch.lengths, {query: len(self._prompts[query])}))

    def _entering_prompts(self) -> dict[int, NDArray[np.int64]]:
        waiting = {query: len(prompt) for query, prompt in self._prompts.items()}
        come = self._scaling.entering(self._batch.lengths, waiting)
        return {query: self._prompts.pop(query) for query in come}

    def _prefill(self, count: int) -> None:
        """The next prompts; their rows wait in host memory with their first tokens."""
        chosen = list(islice(self._prompts, count))
        found = prefilled(self._model, [self._prompts.pop(query) for query in chosen])
        for query, each in zip(chosen, found, strict=True):
            if not self._ends_with(query, int(each.logits.argmax())):
                self._ready[query] = each.row

    def _scale_down(self) -> bool:
        leaving = self._scaling.leaving(self._batch.lengths)
        if not leaving:
            return False
        saved = {query: self._batch.saved(query) for query in leaving}
        self._ready = saved | self._ready
        self._batch.keep([query for query in self._batch.queries if query not in saved])
        self.num_saved += len(saved)
        return True

    def _last(self) -> dict[int, int]:
        return {query: self._trace.tokens[query][-1] for query in self._batch.queries}

    def _take(self, logits: Tensor) -> None:
        self._trace.hold(self._batch.num_bytes)
        tokens = logits.argmax(dim=1).tolist()
        stay = [
            query
            for query, token in zip(self._batch.queries, tokens, strict=True)
            if not self._ends_with(query, token)
        ]
        self._batch.keep(stay)

    def _ends_with(self, query: int, token: int) -> bool:
        """Notes the token; True with the query's last."""
        output = self._trace.tokens[query]
        output.append(token)
        is_last = len(output) == self._queries[query].num_tokens
        self._trace.end(int(is_last))
        return is_last
