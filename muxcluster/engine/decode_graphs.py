"""Decode steps of a model, recorded once a batch size and replayed on the same buffers."""

import logging
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.core.job import SharedPrefixes
from muxcluster.engine.captures import CallAgain, Capture, Step
from muxcluster.engine.decode_step import (
    NUM_BUFFERS,
    DecodeStep,
    buffers_of,
    decode_arrays,
)
from muxcluster.engine.loaded_model import LoadedModel, Numbers
from muxcluster.engine.news import News
from muxcluster.engine.pending import Pending, Readback, Ready, result_of
from muxcluster.engine.prefix_rows import fits
from muxcluster.engine.sampling.plain import is_plain, random_numbers
from muxcluster.engine.sampling.sampler import Sampled, sample
from muxcluster.engine.upload import Array, PackedUpload, num_words

logger = logging.getLogger(__name__)

_NEWS_WORDS = 1 << 16
"""Room behind a step's inputs for table entries: more of them are copied apart."""

_NOBODY = np.empty(0, dtype=np.int32)


def batch_sizes(most: int) -> list[int]:
    """Sizes of recorded batches up to `most`, such that few rows fill up."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, most, 64)]
    return [size for size in sizes if size < most] + [most]


@dataclass(slots=True, eq=False)
class _Recorded:
    """run: the whole step. compute: its first part; recorded when first wanted."""

    step: DecodeStep
    run: Step
    compute: Step | None = None


class DecodeGraphs:
    """The steps that one place (see `Capture`) has recorded; one launch at a time.

    All batch sizes use the same buffers, one after another.
    """

    def __init__(
        self, model: LoadedModel, capture: Capture, upload: PackedUpload, news: News
    ) -> None:
        self._model = model
        self._capture = capture
        self._upload = upload
        self._news = news
        self._sizes = batch_sizes(len(model.arena.tables))
        most, device = self._sizes[-1], model.pool.device
        inputs = num_words(decode_arrays(model, _NOBODY, _NOBODY, np.empty(most)))
        self._words = torch.zeros(inputs + _NEWS_WORDS, dtype=torch.int64, device=device)
        vocab_size = model.sampling.vocab_size
        self._logits = torch.empty((most, vocab_size), dtype=torch.float32, device=device)
        self._recorded: dict[tuple[int, bool], _Recorded] = {}

    def record(self, num_rows: int) -> None:
        """Record the steps of all batches of up to `num_rows` rows, the largest first."""
        most = self._size(num_rows)
        for size in reversed([size for size in self._sizes if size <= most]):
            self._of(size)

    def launch(
        self,
        slots: Numbers,
        starts: Numbers,
        num_steps: int,
        prefixes: SharedPrefixes | None = None,
    ) -> Pending:
        """Rows of one token each at `starts`, all sampling, then on from their own tokens.

        prefixes: what they share, rows of a group side by side. Steps that share are recorded
        apart, when first wanted: fixed in shape like the others, they read the groups from their
        buffers. Where there are too many small groups each row reads its own.
        """
        size = self._size(len(slots))
        recorded = self._of(size, shares=fits(prefixes, size))
        lengths = starts + 1
        if not is_plain(self._model.sampling, slots, lengths):
            compute = self._compute_of(recorded, size)
            self._begin(slots, starts, np.full((1, size), 0.5), prefixes)
            return self._with_host(recorded.step, compute, slots, lengths, num_steps)
        numbers = random_numbers(self._model.sampling, slots, lengths, num_steps, size)
        following = self._begin(slots, starts, numbers, prefixes)
        readback = Readback(num_steps, len(slots), self._words.device)
        for number in range(num_steps):
            if number:
                recorded.step.buffers.drawing[-1].copy_(following[number - 1])
            recorded.run()
            readback.take(number, recorded.step.buffers.outcome)
        return readback.close({})

    def _begin(
        self,
        slots: Numbers,
        starts: Numbers,
        numbers: NDArray[np.float64],
        prefixes: SharedPrefixes | None,
    ) -> Tensor:
        """Fill the buffers, write the news; the random numbers of the steps after the first."""
        inputs = decode_arrays(self._model, slots, starts, numbers[0], prefixes)
        more: list[Array] = [numbers[1:], *self._news.take()]
        if num_words([*inputs, *more]) <= len(self._words):
            following, *news = self._upload([*inputs, *more], self._words, NUM_BUFFERS)
        else:
            following, *news = self._upload(more)
            self._upload(inputs, self._words)
        self._news.write(news)
        return following

    def _with_host(
        self, step: DecodeStep, compute: Step, slots: Numbers, lengths: Numbers, num_steps: int
    ) -> Pending:
        """Steps whose tokens the host's sampler chooses."""
        model, num_rows = self._model, len(slots)
        steps: list[Sampled] = []
        for number in range(num_steps):
            compute()
            sampled = sample(
                step.logits[:num_rows], slots, model.arena.history, lengths + number, model.sampling
            )
            (tokens,) = self._upload([sampled.tokens])
            step.buffers.outcome[1 : 1 + num_rows] = tokens
            step.go_on()
            steps.append(sampled)
        return Ready(result_of(steps, np.arange(num_rows), {}))

    def _size(self, num_rows: int) -> int:
        return next(size for size in self._sizes if size >= num_rows)

    def _of(self, size: int, *, shares: bool = False) -> _Recorded:
        recorded = self._recorded.get((size, shares))
        if recorded is None:
            buffers, logits = buffers_of(self._idle(size)), self._logits[:size]
            step = DecodeStep(self._model, buffers, logits, shares=shares)
            recorded = self._recorded[size, shares] = _Recorded(step, self._record(step.run))
        return recorded

    def _compute_of(self, recorded: _Recorded, size: int) -> Step:
        if recorded.compute is None:
            self._idle(size)
            recorded.compute = self._record(recorded.step.compute)
        return recorded.compute

    def _idle(self, size: int) -> list[Tensor]:
        """The buffers with rows that only fill up: to run them touches no sequence."""
        arrays = decode_arrays(self._model, _NOBODY, _NOBODY, np.full(size, 0.5))
        return self._upload(arrays, self._words)

    def _record(self, step: Step) -> Step:
        try:
            return self._capture.capture(step)
        except RuntimeError as error:
            logger.warning("%s decodes without CUDA graphs: %s", self._model.name, error)
            self._capture = CallAgain()
            return step
