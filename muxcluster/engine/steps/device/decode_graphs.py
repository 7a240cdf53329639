"""Decode steps of a model, recorded once per batch size and replayed on the same buffers."""

import logging
from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.core.job import SharedPrefixes
from muxcluster.engine.forward.loaded_model import LoadedModel, Numbers
from muxcluster.engine.forward.prefix_rows import fits
from muxcluster.engine.memory.pending_writes import PendingWrites
from muxcluster.engine.memory.upload import Array, PackedUpload, num_words
from muxcluster.engine.sampling.plain import is_plain, random_numbers
from muxcluster.engine.sampling.results import Pending, Readback, Ready, result_of
from muxcluster.engine.sampling.sampler import Sampled, sample
from muxcluster.engine.steps.device.capture_lint import NotCapturable
from muxcluster.engine.steps.device.captures import Capture, Step
from muxcluster.engine.steps.device.decode_step import DecodeStep, buffers_of, decode_arrays

logger = logging.getLogger(__name__)

# Room behind a step's inputs for table entries; more entries are copied separately.
_NEWS_WORDS = 1 << 16

_NOBODY = np.empty(0, dtype=np.int32)

MOST_FAILURES = 3  # after this many failed captures in a row none is tried

# Cost of a step that is not recorded, and of recording one, in units of about half a millisecond:
# without a graph the host takes some 5 ms longer for a model of 8 billion parameters, with up to
# twice the rows the device takes less than one; recording runs the step four times (estimates, not
# yet measured on a GPU).
_EAGER_COST, _PADDED_COST, _RECORDING_COST = 10, 1, 300


def batch_sizes(most: int) -> list[int]:
    """Return sizes of recorded batches up to `most`, such that few rows only fill up."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, most, 64)]
    return [size for size in sizes if size < most] + [most]


def sizes_ahead(most: int, share: float) -> list[int]:
    """Return the sizes of batches of up to `most` rows to record before serving, ascending.

    share: of the SMs that the worker may have at most. On all of them: powers of two and `most`, so
    that less than half of the rows fill up. On a part: powers of four up to `share * most` rows.
    Other sizes are recorded when they are met: see `DecodeGraphs`.
    """
    # Every rung of every worker has graphs of its own: each takes 0.1 to 0.3 s to record, and some
    # MiB. Arithmetic bounds a step from about `share` times as many rows on: more rows take longer
    # in proportion there, so that large batches gain nothing on small rungs.
    is_whole = share >= 1.0
    factor, limit = (2, most) if is_whole else (4, max(1, int(share * most)))
    sizes, size = [], 1
    while size <= limit:
        sizes.append(size)
        size *= factor
    return sizes if not is_whole or sizes[-1] == most else [*sizes, most]


@dataclass(frozen=True, slots=True)
class _Kind:
    size: int  # rows
    shares: bool  # True if its attention reads shared prefixes once
    draws: bool  # True: the whole step; else its first part, after which the host's sampler chooses
    is_adapted: bool = False  # True if its rows may have adapters

    def can_run(self, wanted: "_Kind") -> bool:
        """Return whether this step can do the work of `wanted`.

        It may have more rows, which fill up, and may read a shared prefix once for each row.
        """
        is_alike = self.draws == wanted.draws and self.is_adapted == wanted.is_adapted
        is_large = self.size >= wanted.size and is_alike
        return is_large and (wanted.shares or not self.shares)


class DecodeGraphs:
    """The steps that one place (see `Capture`) has recorded; one launch at a time.

    All batch sizes use the same buffers, one after another.

    A step that is not recorded runs on the smallest recorded one that can do its work, else
    operator by operator. It is then wanted: `record_next` records it when the worker is idle, and
    `launch` once not having it has cost about as much time as recording takes.
    """

    def __init__(
        self, model: LoadedModel, capture: Capture, upload: PackedUpload, writes: PendingWrites
    ) -> None:
        self._model = model
        self._capture = capture
        self._upload = upload
        self._writes = writes
        self._sizes = batch_sizes(model.most_recorded)
        most, device = self._sizes[-1], model.pool.device
        inputs = num_words(decode_arrays(model, _NOBODY, _NOBODY, np.empty(most)))
        self._words = torch.zeros(inputs + _NEWS_WORDS, dtype=torch.int64, device=device)
        vocab_size = model.sampling.vocab_size
        self._logits = torch.empty((most, vocab_size), dtype=torch.float32, device=device)
        self._steps: dict[tuple[int, bool, bool], DecodeStep] = {}
        self._recorded: dict[_Kind, Step] = {}
        self._wanted: Counter[_Kind] = Counter()
        self._failed: set[_Kind] = set()
        # of steps without and with adapters: these run on other kernels
        self._num_failures_in_a_row = {False: 0, True: 0}
        self._checked: set[bool] = set()

    @property
    def num_recorded(self) -> int:
        return len(self._recorded)

    def record(self, num_rows: int, share: float = 1.0) -> None:
        """Record the likeliest steps of up to `num_rows` rows, the largest first.

        share: as in `sizes_ahead`.
        """
        # The memory of the largest serves the others too.
        for size in reversed(sizes_ahead(min(num_rows, self._sizes[-1]), share)):
            self._record(_Kind(self._size(size), shares=False, draws=True))

    def record_next(self) -> bool:
        """Record the most wanted step that is not recorded; return whether there was one."""
        if not self._wanted:
            return False
        ((kind, _),) = self._wanted.most_common(1)
        self._record(kind)
        return True

    def launch(
        self,
        table_rows: Numbers,
        starts: Numbers,
        num_steps: int,
        prefixes: SharedPrefixes | None = None,
    ) -> Pending:
        """Run rows of one token each at `starts`, all sampling, then on from their own tokens.

        prefixes: what they share, rows of a group side by side. Steps that share are recorded
        apart: they read the groups from their buffers, in a fixed shape. If there are too many
        small groups each row reads its own prefix.
        """
        lengths = starts + 1
        is_drawn = is_plain(self._model.sampling, table_rows, lengths)
        size, adapters = self._size(len(table_rows)), self._model.adapters
        is_adapted = adapters is not None and adapters.are_in(table_rows)
        kind, run = self._runnable(_Kind(size, fits(prefixes, size), is_drawn, is_adapted))
        step = self._step_of(kind)
        if not is_drawn:
            self._begin(table_rows, starts, np.full((1, kind.size), 0.5), prefixes)
            return self._with_host(step, run, table_rows, lengths, num_steps)
        numbers = random_numbers(self._model.sampling, table_rows, lengths, num_steps, kind.size)
        following = self._begin(table_rows, starts, numbers, prefixes)
        readback = Readback(num_steps, len(table_rows), self._words.device)
        for number in range(num_steps):
            if number:
                step.buffers.drawing[-1].copy_(following[number - 1])
            run()
            readback.take(number, step.buffers.outcome)
        return readback.close({})

    def _begin(
        self,
        table_rows: Numbers,
        starts: Numbers,
        numbers: NDArray[np.float64],
        prefixes: SharedPrefixes | None,
    ) -> Tensor:
        """Fill the buffers and make the pending writes; return random numbers of later steps."""
        inputs = decode_arrays(self._model, table_rows, starts, numbers[0], prefixes)
        more: list[Array] = [numbers[1:], *self._writes.take()]
        if num_words([*inputs, *more]) <= len(self._words):
            following, *writes = self._upload([*inputs, *more], self._words, len(inputs))
        else:
            following, *writes = self._upload(more)
            self._upload(inputs, self._words)
        self._writes.write(writes)
        return following

    def _with_host(
        self, step: DecodeStep, compute: Step, table_rows: Numbers, lengths: Numbers, num_steps: int
    ) -> Pending:
        """Run steps whose tokens the host's sampler chooses."""
        model, num_rows = self._model, len(table_rows)
        steps: list[Sampled] = []
        for number in range(num_steps):
            pending = model.constrained.begin(table_rows, lengths + number)
            compute()
            sampled = sample(
                step.logits[:num_rows],
                table_rows,
                model.arena.history,
                lengths + number,
                model.sampling,
                None if pending is None else pending.wait(),
            )
            (tokens,) = self._upload([sampled.tokens])
            step.buffers.outcome[1 : 1 + num_rows] = tokens
            step.go_on()
            steps.append(sampled)
        return Ready(result_of(steps, np.arange(num_rows), {}))

    def _size(self, num_rows: int) -> int:
        return next(size for size in self._sizes if size >= num_rows)

    def _runnable(self, wanted: _Kind) -> tuple[_Kind, Step]:
        """Return a recorded step of the wanted kind, one that can stand in for it, or the step."""
        if wanted not in self._recorded:
            able = [kind for kind in self._recorded if kind.can_run(wanted)]
            self._want(wanted, _PADDED_COST if able else _EAGER_COST)
        if wanted in self._recorded:
            return wanted, self._recorded[wanted]
        if able:
            kind = min(able, key=lambda kind: (kind.shares != wanted.shares, kind.size))
            return kind, self._recorded[kind]
        return wanted, self._plain_step(wanted)

    def _want(self, kind: _Kind, cost: int) -> None:
        """Add the cost of not having `kind`; record it if that has become too much."""
        if kind in self._failed or self._gives_up(kind):
            return
        self._wanted[kind] += cost
        if self._wanted[kind] >= _RECORDING_COST:
            self._record(kind)

    def _gives_up(self, kind: _Kind) -> bool:
        return self._num_failures_in_a_row[kind.is_adapted] >= MOST_FAILURES

    def _give_up(self, like: _Kind) -> None:
        """Record no more steps that have adapters, or none, as `like` has."""
        self._num_failures_in_a_row[like.is_adapted] = MOST_FAILURES
        for kind in [each for each in self._wanted if each.is_adapted == like.is_adapted]:
            del self._wanted[kind]

    def _record(self, kind: _Kind) -> None:
        """Record the step; if that fails, log it once and run it as it is."""
        self._wanted.pop(kind, None)
        if self._gives_up(kind) or kind in self._recorded or kind in self._failed:
            return
        step = self._plain_step(kind)
        self._idle(kind.size)
        if kind.is_adapted not in self._checked and not self._can_be_captured(kind, step):
            return
        try:
            self._recorded[kind] = self._capture.capture(step)
            self._num_failures_in_a_row[kind.is_adapted] = 0
        except RuntimeError as error:
            self._note_failure(kind, error)

    def _can_be_captured(self, kind: _Kind, step: Step) -> bool:
        """Return whether steps like `kind` can be captured; if not, log it once and try none."""
        # A capture that fails leaves its memory behind.
        self._checked.add(kind.is_adapted)
        try:
            self._capture.check(step)
        except NotCapturable as reason:
            name = self._model.name
            logger.warning("%s decodes without CUDA graphs, which cannot capture %s", name, reason)
            self._give_up(kind)
            return False
        return True

    def _note_failure(self, kind: _Kind, error: RuntimeError) -> None:
        self._failed.add(kind)
        self._num_failures_in_a_row[kind.is_adapted] += 1
        name = self._model.name
        logger.error("%s decodes %d rows without a CUDA graph: %s", name, kind.size, error)
        if self._gives_up(kind):
            self._give_up(kind)
            whose = f"{name} with adapters" if kind.is_adapted else name
            logger.error("%s: no more CUDA graphs after %d failures", whose, MOST_FAILURES)

    def _plain_step(self, kind: _Kind) -> Step:
        step = self._step_of(kind)
        return step.run if kind.draws else step.compute

    def _step_of(self, kind: _Kind) -> DecodeStep:
        key = kind.size, kind.shares, kind.is_adapted
        if key not in self._steps:
            has_adapters = self._model.adapters is not None
            buffers = buffers_of(self._idle(kind.size), has_adapters=has_adapters)
            self._steps[key] = DecodeStep(
                self._model,
                buffers,
                self._logits[: kind.size],
                shares=kind.shares,
                is_adapted=kind.is_adapted,
            )
        return self._steps[key]

    def _idle(self, size: int) -> list[Tensor]:
        """Return the buffers with rows that only fill up: running them touches no sequence."""
        arrays = decode_arrays(self._model, _NOBODY, _NOBODY, np.full(size, 0.5))
        return self._upload(arrays, self._words)
