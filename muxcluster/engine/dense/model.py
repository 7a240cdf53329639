"""Finds out what a model's own cache allows, by running the model when it is loaded."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.engine.dense.axes import CacheAxes, Sample
from muxcluster.engine.dense.batch import DenseBatch
from muxcluster.engine.dense.forward import DenseForward, Foreign
from muxcluster.engine.dense.layout import RowLayout
from muxcluster.engine.dense.padding import Padding
from muxcluster.engine.dense.prefill import MOST_PADDING, prefill

_LONG, _SHORT = 9, 5  # prompt tokens of the trial; the padding is longer than most convolutions

# difference of logits that rounding may make, relative to the largest logit
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


class NotDense(ValueError):
    """The model cannot be re-batched; the message says why, for people."""


@dataclass(frozen=True, slots=True, eq=False)
class DenseModel:
    """A model and how its rows may be batched."""

    forward: DenseForward
    axes: CacheAxes
    most_padding: float  # of a group that is prefilled together (see `prefill.similar`)
    # padding inside a row leaves its tokens as they are, so queries can be shaped in
    takes_holes: bool
    takes_chunks: bool  # tokens may come several at a time behind those of the cache
    layout: RowLayout  # its rows as bytes

    @classmethod
    @torch.inference_mode()
    def of(cls, model: Foreign) -> "DenseModel":
        """Raises NotDense where rows of different lengths cannot be side by side."""
        try:
            forward = DenseForward(model)
            sample = _sample(forward, 2, _LONG)
            trial = _Trial(forward, _axes(forward, sample))
            layout = RowLayout(trial.axes, sample)
            is_sound = trial.embeds()
        except Exception as error:  # foreign code: whatever it raises means the same
            raise NotDense(f"{type(error).__name__}: {error}") from error
        if not is_sound:
            raise NotDense("padding on the left of a row changes its tokens")
        pads = _holds(trial.pads_prompts)
        is_positional = not trial.axes.has_fixed_states
        holes = is_positional and not forward.has_windows and _holds(trial.takes_holes)
        chunks = is_positional and _holds(trial.takes_chunks)
        padding = MOST_PADDING if pads else 0.0
        return cls(forward, trial.axes, padding, holes, chunks, layout)

    def batch(self) -> DenseBatch:
        return DenseBatch(self.forward, self.axes)


def _sample(forward: DenseForward, rows: int, length: int) -> Sample:
    tokens = np.ones((rows, length), dtype=np.int64)
    return Sample(forward.run(tokens, Padding.of([length] * rows), None).cache, rows, length)


def _axes(forward: DenseForward, one: Sample) -> CacheAxes:
    longer = _sample(forward, one.rows, one.length + 1)
    return CacheAxes.found(one, longer, _sample(forward, one.rows + 1, one.length))


def _holds(trial: Callable[[], bool]) -> bool:
    try:
        return trial()
    # a model that lacks the ability may raise anything
    except Exception:  # noqa: BLE001
        return False


class _Trial:
    """Compares logits of two prompts, and three tokens after each, side by side and alone."""

    def __init__(self, forward: DenseForward, axes: CacheAxes) -> None:
        rng = np.random.default_rng(0)
        self.axes = axes
        self._forward = forward
        self._prompts = [rng.integers(0, forward.vocab_size, n) for n in (_LONG, _SHORT)]
        self._next = rng.integers(0, forward.vocab_size, (3, 2))
        self._alone = [self._of_one(i, prompt) for i, prompt in enumerate(self._prompts)]

    def embeds(self) -> bool:
        """True if rows that were prefilled alone may be side by side."""
        return self._continues(self._prefilled(0.0))

    def pads_prompts(self) -> bool:
        """True if prompts of different lengths may be prefilled together."""
        return self._continues(self._prefilled(np.inf))

    def takes_holes(self) -> bool:
        """True if a prompt may be prefilled beside a token of another, in either order."""
        return self._shapes(0, 1) and self._shapes(1, 0)

    def takes_chunks(self) -> bool:
        """True if the rest of a prompt may come in one forward behind its beginning."""
        prompt, half = self._prompts[0], _LONG // 2
        begun = self._forward.run(prompt[None, :half], Padding.of([half]), None)
        ended = self._forward.run(prompt[None, half:], Padding.of([_LONG]), begun.cache)
        return self._same(ended.logits[0], self._alone[0][0])

    def _shapes(self, first: int, second: int) -> bool:
        batch = self._batch(first)
        prompts = {second: self._prompts[second]}
        logits = [batch.shape({first: self._next[0, first]}, prompts)]
        for step in range(2):
            tokens = {first: self._next[step + 1, first], second: self._next[step, second]}
            logits.append(batch.step(tokens))
        return all(
            self._same(each[0], self._alone[first][step + 1])
            and self._same(each[1], self._alone[second][step])
            for step, each in enumerate(logits)
        )

    def _batch(self, query: int) -> DenseBatch:
        batch = DenseBatch(self._forward, self.axes)
        batch.embed({query: prefill(self._forward, self.axes, [self._prompts[query]])[0].row})
        return batch

    def _prefilled(self, most_padding: float) -> list[Tensor]:
        """Return logits [2, vocab] after the prompts and after each step."""
        found = prefill(self._forward, self.axes, self._prompts, most_padding=most_padding)
        batch = DenseBatch(self._forward, self.axes)
        batch.embed({0: found[0].row})
        batch.embed({1: found[1].row})
        steps = [batch.step({0: tokens[0], 1: tokens[1]}) for tokens in self._next]
        return [torch.stack([each.logits for each in found]), *steps]

    def _continues(self, logits: list[Tensor]) -> bool:
        return all(
            self._same(each[query], self._alone[query][step])
            for step, each in enumerate(logits)
            for query in range(2)
        )

    def _of_one(self, query: int, prompt: NDArray[np.int64]) -> list[Tensor]:
        """Return logits computed without a batch: the whole sequence in one forward."""
        tokens = np.concatenate((prompt, self._next[:, query]))[None]
        padding = Padding.of([tokens.shape[1]])
        logits = self._forward.run(tokens, padding, None, all_logits=True).logits[0]
        return list(logits[len(prompt) - 1 :])

    def _same(self, one: Tensor, other: Tensor) -> bool:
        limit = _TOLERANCE.get(self._forward.dtype, 5e-2) * other.abs().max()
        return bool((one - other).abs().max() <= limit)
