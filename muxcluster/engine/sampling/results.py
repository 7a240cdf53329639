"""Results of rows, and placeholders for results while the device still works."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.core.job import TokenLogprobs
from muxcluster.core.padded import PaddedBatch
from muxcluster.engine.sampling.plain import BROKEN
from muxcluster.engine.sampling.sampler import Sampled


@dataclass(frozen=True, slots=True, eq=False)
class RowsResult:
    """Tokens and logprobs of a job's rows."""

    # int32 [steps, sampling rows]. Logprobs, padded: as in `JobResult`, by row.
    tokens: NDArray[np.int32]
    logprobs: Mapping[int, tuple[TokenLogprobs, ...]]
    prompt_logprobs: Mapping[int, tuple[TokenLogprobs, ...]]
    # bool [sampling rows], logits of some step were not finite (`Sampled.broken_rows`)
    is_broken: NDArray[np.bool_]
    padded: PaddedBatch | None = None
    refused: Mapping[int, str] = field(default_factory=dict)  # as `Sampled.refused_rows`, by row
    mask_wait_s: float = 0.0  # of all steps
    # Row -> tokens that must follow the one it sampled in the last step, in the history already;
    # their keys and values are not computed, but for drafts that were right
    runs: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    vectors: Mapping[int, bytes] = field(default_factory=dict)  # as in `JobResult`
    # image_tokens, image_s: as in `JobResult`
    image_tokens: int = 0
    image_s: float = 0.0


class Pending(Protocol):
    """Steps that were given to the device."""

    @property
    def is_done(self) -> bool:
        """True where `result` need not wait."""
        ...

    def result(self) -> RowsResult:
        """Wait for the steps and return their result."""
        ...


@dataclass(frozen=True, slots=True)
class Ready:
    """Steps that have ended."""

    value: RowsResult

    @property
    def is_done(self) -> bool:
        return True

    def result(self) -> RowsResult:
        return self.value


class Readback:
    """Outcomes of plain steps, copied to the host behind them."""

    def __init__(self, num_steps: int, num_rows: int, device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        self._device = device
        self._host = torch.empty((num_steps, 1 + num_rows), dtype=torch.int64, pin_memory=is_cuda)
        self._done = new_event() if is_cuda else None
        self._prompt_logprobs: Mapping[int, tuple[TokenLogprobs, ...]] = {}

    def take(self, step: int, outcome: Tensor) -> None:
        """Start the copy of `outcome`, int64 [at least 1 + rows], as `plain.draw` leaves it."""
        self._host[step].copy_(outcome[: self._host.shape[1]], non_blocking=True)

    def close(self, prompt_logprobs: Mapping[int, tuple[TokenLogprobs, ...]]) -> Pending:
        """Record the end, after the last step was taken."""
        self._prompt_logprobs = prompt_logprobs
        if self._done is not None:
            self._done.record(torch.cuda.current_stream(self._device))
        return self

    @property
    def is_done(self) -> bool:
        return self._done is None or has_passed(self._done)

    def result(self) -> RowsResult:
        if self._done is not None:
            self._done.synchronize()
        outcomes = self._host.numpy()
        return RowsResult(
            tokens=outcomes[:, 1:].astype(np.int32),
            logprobs={},
            prompt_logprobs=self._prompt_logprobs,
            is_broken=np.logical_or.reduce(outcomes[:, 1:] >= BROKEN),
        )


def has_passed(event: torch.cuda.Event) -> bool:
    """Return whether the device has reached `event`, without waiting."""
    return bool(event.query())  # type: ignore[no-untyped-call]  # torch's own gap


def new_event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's own gap


@dataclass(frozen=True, slots=True)
class InOrder:
    """Steps of the same rows, in consecutive parts."""

    parts: Sequence[Pending]

    @property
    def is_done(self) -> bool:
        return self.parts[-1].is_done

    def result(self) -> RowsResult:
        results = [part.result() for part in self.parts]
        asking = {row for result in results for row in result.logprobs}
        return RowsResult(
            tokens=np.concatenate([result.tokens for result in results]),
            logprobs={
                row: tuple(entry for result in results for entry in result.logprobs.get(row, ()))
                for row in asking
            },
            prompt_logprobs=results[0].prompt_logprobs,
            is_broken=np.logical_or.reduce([result.is_broken for result in results]),
            refused={row: why for result in results for row, why in result.refused.items()},
            mask_wait_s=sum(result.mask_wait_s for result in results),
            vectors=results[-1].vectors,
        )


def result_of(
    steps: Sequence[Sampled],
    rows: NDArray[np.intp],
    prompt_logprobs: Mapping[int, tuple[TokenLogprobs, ...]],
) -> RowsResult:
    """Return the result of steps of the host's sampler.

    rows: the job's sampling rows; the steps count only these.
    """
    is_broken = np.zeros(len(rows), dtype=np.bool_)
    for step in steps:
        is_broken[list(step.broken_rows)] = True
    asking = [i for i in range(len(rows)) if i in steps[0].logprobs]
    return RowsResult(
        tokens=np.stack([step.tokens for step in steps]),
        logprobs={int(rows[i]): tuple(step.logprobs[i] for step in steps) for i in asking},
        prompt_logprobs=prompt_logprobs,
        is_broken=is_broken,
        refused={int(rows[i]): why for step in steps for i, why in step.refused_rows.items()},
        mask_wait_s=sum(step.mask_wait_s for step in steps),
        runs={int(rows[i]): run for i, run in steps[-1].runs.items()},
        vectors={int(rows[i]): each for i, each in steps[-1].vectors.items()},
    )
