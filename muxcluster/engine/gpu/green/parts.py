"""Green contexts of a unit's seats: which multiprocessors each worker slot gets at each share."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from muxcluster.core.errors import EngineFailure
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.gpu.context import open_own_context
from muxcluster.engine.gpu.driver import Driver, DriverError, GreenContext, SmResource, SmSplit
from muxcluster.engine.gpu.green.ends import TwoEnds
from muxcluster.engine.gpu.refusals import NO_GREEN
from muxcluster.engine.gpu.shares import Seen, check_apart, check_shares
from muxcluster.engine.gpu.sm_probe import SmProbe
from muxcluster.engine.processes.rungs import Seat

logger = logging.getLogger(__name__)

_EPSILON = 1e-6


class Contexts(Protocol):
    """The driver calls that are needed: see driver.Driver."""

    def split(self) -> SmSplit: ...

    def create(self, resources: Sequence[SmResource]) -> GreenContext: ...

    def destroy(self, green: GreenContext) -> None: ...


@dataclass(frozen=True, slots=True)
class Part:
    """Multiprocessors of one seat. green: None for all of them."""

    green: GreenContext | None
    stream: torch.cuda.Stream | None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Work of this thread runs on the part."""
        if self.stream is None:
            yield
        else:
            with torch.cuda.stream(self.stream):
                yield


class Parts(Protocol):
    """Where the seats of a unit in one process run."""

    def open(self, seats: Sequence[Seat]) -> Mapping[int, Part]:
        """By seat id, verified. Raises EngineFailure: there are none, or a share had no effect."""
        ...

    def close(self) -> None:
        """Give them back, when nothing runs on them; idempotent."""
        ...


class GreenParts:
    """Worker slots take the card from its two ends in turn, so that the first slot (prefill) and
    the second one are apart at all shares that fill at most the card together."""

    def __init__(self, contexts: Contexts, device: torch.device) -> None:
        self._contexts = contexts
        self._device = device
        self._made: list[GreenContext] = []

    def open(self, seats: Sequence[Seat]) -> Mapping[int, Part]:
        probe = SmProbe(self._device)
        whole = len(probe.run())
        try:
            parts = self._make(seats)
        except DriverError as reason:
            raise EngineFailure(NO_GREEN.format(reason=reason)) from reason
        seen = {seat_id: _seen(part, probe) for seat_id, part in parts.items()}
        check_shares(seats, seen, whole)
        check_apart(seats, seen)
        logger.info("multiprocessors seen: %s", _counts(seats, seen))
        return parts

    def close(self) -> None:
        while self._made:
            self._contexts.destroy(self._made.pop())

    def _make(self, seats: Sequence[Seat]) -> dict[int, Part]:
        """Raises DriverError: a call was refused, or the device cannot be divided."""
        split = self._contexts.split()
        if split.combines_rest:
            try:
                return self._make_of(split, seats)
            except DriverError as refusal:
                logger.warning("groups and the rest of a split were not combined: %s", refusal)
                self.close()
        if split.rest is not None:
            logger.info(
                "%d of %d multiprocessors are in no group: only jobs on the whole card use them",
                *(split.rest.sm_count, split.num_sms),
            )
        return self._make_of(replace(split, combines_rest=False), seats)

    def _make_of(self, split: SmSplit, seats: Sequence[Seat]) -> dict[int, Part]:
        ends = TwoEnds(split)
        from_start = {
            worker_id: index % 2 == 0
            for index, worker_id in enumerate(sorted({seat.worker_id for seat in seats}))
        }
        return {seat.seat_id: self._part(seat, ends, from_start[seat.worker_id]) for seat in seats}

    def _part(self, seat: Seat, ends: TwoEnds, is_from_start: bool) -> Part:
        assert seat.share is not None, "a context has one share"
        if seat.share >= 1.0 - _EPSILON:  # a stream of its own, or slots would wait for each other
            own = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
            return Part(None, own)
        green = self._contexts.create(
            ends.from_start(seat.share) if is_from_start else ends.from_end(seat.share)
        )
        self._made.append(green)
        stream = torch.cuda.ExternalStream(green.stream, self._device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return Part(green, stream)


class ThreadParts:
    """The CPU's twin: nothing confines a thread, and nothing is verified."""

    def open(self, seats: Sequence[Seat]) -> Mapping[int, Part]:
        return {seat.seat_id: Part(None, None) for seat in seats}

    def close(self) -> None:
        """Nothing is held."""


def parts_for(spec: UnitSpec) -> Parts:
    """Of the unit's device. Raises EngineFailure where the driver cannot be loaded."""
    device = torch.device(spec.device)
    if device.type == "cpu":
        return ThreadParts()
    open_own_context(device, os.environ)
    try:
        return GreenParts(Driver(index=device.index or 0), device)
    except (OSError, DriverError) as reason:
        raise EngineFailure(NO_GREEN.format(reason=reason)) from reason


def _seen(part: Part, probe: SmProbe) -> frozenset[int]:
    with part.entered():
        probe.launch()
    return probe.seen()


def _counts(seats: Sequence[Seat], seen: Seen) -> str:
    return ", ".join(f"{len(seen[seat.seat_id])} at {seat.share:g}" for seat in seats)
