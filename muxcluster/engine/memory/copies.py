"""Copies of token slots that a job makes before its forward: saves, moves, restores (BROS §5)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.core.job import SlotCopies
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.memory.arena import Arena
from muxcluster.engine.memory.copies_cpu import copy_between_blocks
from muxcluster.kernels.slot_copy import slot_copy

# Device memory, and pinned host memory, of one part of a transfer: the reserve beside the pool is
# no larger. A power of two, because torch rounds pinned memory up to one.
STAGING_BYTES = 64 * 2**20

# [n, 3]: first slot of the source, first slot of the destination, number of slots.
Runs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SlotSizes:
    """Sizes of one model's slots and blocks."""

    slot_bytes: int
    block_tokens: int


class Transfer(Protocol):
    """Copies slots of one model between pool and host memory, or within the pool."""

    def save(self, runs: Runs, sizes: SlotSizes) -> None:
        """Copy pool to host. The next work on the device may overwrite the pool."""
        ...

    def move(self, runs: Runs, sizes: SlotSizes) -> None:
        """Copy pool to pool."""
        ...

    def restore(self, runs: Runs, sizes: SlotSizes) -> None:
        """Copy host to pool, what was saved before included."""
        ...

    def settle(self) -> None:
        """Block until all saves are in host memory."""
        ...

    def forget(self) -> None:
        """Drop saves that have not settled: their job failed."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class DirectTransfer:
    """Transfer on the CPU, where the pool lies in host memory too: one copy is enough."""

    # pool, host: uint8 [num_blocks, block_bytes] and [num_host_blocks, block_bytes]
    pool: Tensor
    host: Tensor

    def save(self, runs: Runs, sizes: SlotSizes) -> None:
        copy_between_blocks(self.host, self.pool, runs, sizes.slot_bytes, sizes.block_tokens)

    def move(self, runs: Runs, sizes: SlotSizes) -> None:
        copy_between_blocks(self.pool, self.pool, runs, sizes.slot_bytes, sizes.block_tokens)

    def restore(self, runs: Runs, sizes: SlotSizes) -> None:
        copy_between_blocks(self.pool, self.host, runs, sizes.slot_bytes, sizes.block_tokens)

    def settle(self) -> None:
        """Do nothing: saves have settled when `save` returns."""

    def forget(self) -> None:
        """Do nothing: no save is ever open."""


@dataclass(frozen=True, slots=True, eq=False)
class StagedTransfer:
    """Transfer on a GPU: a kernel gathers slots into device memory, one copy takes them to the
    host.

    All of it is on the current stream: kernels of the forward come after the gather that saves what
    they overwrite, and after the scatter of a restore. The CPU spreads saved slots over the host
    blocks when the device is done, after the forward. A restore goes the same way back, and waits
    only for the CPU's part.
    """

    # A head-wise block is a few KiB, and one copy per run would cost thousands of launches. So
    # slots cross the bus packed, whole tokens side by side, into pinned memory.

    pool: Tensor  # on the device
    host: Tensor  # Pinned. For tests both may be on the CPU; on a GPU it has not run yet.
    staging_bytes: int = STAGING_BYTES
    open_saves: list[tuple[Tensor, Runs, SlotSizes]] = field(default_factory=list)

    def save(self, runs: Runs, sizes: SlotSizes) -> None:
        for part in _parts(runs, self.staging_bytes // (2 * sizes.slot_bytes)):
            packed = self._packed(part, sizes, self.pool.device)
            copy_runs(packed, self.pool, _with_packed(part, 1), sizes, destination_tokens=1)
            arrived = self._packed(part, sizes, self.host.device)
            arrived.copy_(packed, non_blocking=True)
            self.open_saves.append((arrived, _with_packed(part, 0), sizes))

    def move(self, runs: Runs, sizes: SlotSizes) -> None:
        copy_runs(self.pool, self.pool, runs, sizes)

    def restore(self, runs: Runs, sizes: SlotSizes) -> None:
        self.settle()
        for part in _parts(runs, self.staging_bytes // (2 * sizes.slot_bytes)):
            leaving = self._packed(part, sizes, self.host.device)
            copy_runs(leaving, self.host, _with_packed(part, 1), sizes, destination_tokens=1)
            packed = self._packed(part, sizes, self.pool.device)
            packed.copy_(leaving, non_blocking=True)
            copy_runs(self.pool, packed, _with_packed(part, 0), sizes, source_tokens=1)

    def settle(self) -> None:
        if self.open_saves and self.pool.is_cuda:
            torch.cuda.current_stream(self.pool.device).synchronize()
        for arrived, runs, sizes in self.open_saves:
            copy_runs(self.host, arrived, runs, sizes, source_tokens=1)
        self.open_saves.clear()

    def forget(self) -> None:
        self.open_saves.clear()

    def _packed(self, runs: Runs, sizes: SlotSizes, device: torch.device) -> Tensor:
        """Return uint8 [slots of `runs`, 2 * slot_bytes], one slot a block; pinned on the CPU."""
        shape = (int(runs[:, 2].sum()), 2 * sizes.slot_bytes)
        is_pinned = device.type == "cpu" and self.pool.is_cuda
        return torch.empty(shape, dtype=torch.uint8, device=device, pin_memory=is_pinned)


class UnitCopies:
    """Makes the copies of a unit's jobs, one job at a time."""

    def __init__(self, spec: UnitSpec, arena: Arena, transfer: Transfer | None = None) -> None:
        """transfer: by default what the pool's device needs."""
        chosen = StagedTransfer if arena.pool.is_cuda else DirectTransfer
        self._transfer = transfer or chosen(arena.pool, arena.host)
        self._sizes = {
            model.name: SlotSizes(
                model.shape.slot_bytes, model.shape.block_tokens(spec.block_bytes)
            )
            for model in spec.models
        }

    def run(self, copies: Sequence[SlotCopies]) -> None:
        """Make all saves, then all moves and restores; later work on the device sees them done.

        Raises ValueError on the CPU for runs that leave the pool or the host memory.
        """
        self._transfer.forget()
        for each in copies:
            if len(each.saves):
                self._transfer.save(each.saves, self._sizes[each.model])
        for each in copies:
            if len(each.moves):
                self._transfer.move(each.moves, self._sizes[each.model])
        for each in copies:
            if len(each.restores):
                self._transfer.restore(each.restores, self._sizes[each.model])

    def settle(self) -> None:
        """After the forward of a job with copies: block until its saves are in host memory."""
        self._transfer.settle()


def copy_runs(
    destination: Tensor,
    source: Tensor,
    runs: Runs,
    sizes: SlotSizes,
    *,
    destination_tokens: int | None = None,
    source_tokens: int | None = None,
) -> None:
    """Run slot_copy with the model's blocks on both sides, or blocks of the given numbers of slots.

    The runs go to the device of the GPU side, if there is one.
    """
    device = destination.device if destination.is_cuda else source.device
    slot_copy(
        destination,
        source,
        torch.from_numpy(runs.copy()).to(device),  # arrays of a decoded message may be read-only
        slot_bytes=sizes.slot_bytes,
        destination_tokens=destination_tokens or sizes.block_tokens,
        source_tokens=source_tokens or sizes.block_tokens,
    )


def _with_packed(runs: Runs, column: int) -> Runs:
    """Return the runs with source (column 0) or destination (1) consecutive in packed memory."""
    packed = runs.copy()
    packed[:, column] = runs[:, 2].cumsum() - runs[:, 2]
    return packed


def _parts(runs: Runs, most_slots: int) -> Iterator[Runs]:
    """Yield the runs in order, in parts of `most_slots` slots and a last one of the rest.

    A run that lies in two parts is cut.
    """
    most_slots = max(1, most_slots)
    ends = runs[:, 2].cumsum()
    cut_ends = np.union1d(ends, np.arange(most_slots, ends[-1], most_slots))
    cut_starts = np.concatenate(([0], cut_ends[:-1]))
    whole = np.searchsorted(ends, cut_starts, side="right")
    cut = runs[whole]
    cut[:, :2] += (cut_starts - (ends - runs[:, 2])[whole])[:, None]
    cut[:, 2] = cut_ends - cut_starts
    part_of = cut_starts // most_slots
    yield from np.split(cut, np.flatnonzero(np.diff(part_of)) + 1)
