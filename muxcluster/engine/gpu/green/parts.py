"""Green contexts of a unit's rungs: which multiprocessors each worker gets at each share."""

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
from muxcluster.engine.processes.rungs import WorkerRung

logger = logging.getLogger(__name__)

_EPSILON = 1e-6


class Contexts(Protocol):
    """The driver calls that are needed: see `driver.Driver`."""

    def split(self) -> SmSplit: ...

    def create(self, resources: Sequence[SmResource]) -> GreenContext: ...

    def destroy(self, green: GreenContext) -> None: ...


@dataclass(frozen=True, slots=True)
class Part:
    """Multiprocessors of one rung."""

    green: GreenContext | None  # None for all of them
    stream: torch.cuda.Stream | None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Run the work of this thread on the part."""
        if self.stream is None:
            yield
        else:
            with torch.cuda.stream(self.stream):
                yield


class Parts(Protocol):
    """The parts of the device where the rungs of a unit in one process run."""

    def open(self, rungs: Sequence[WorkerRung]) -> Mapping[int, Part]:
        """Return verified parts by rung id. Raises EngineFailure: none, or without effect."""
        ...

    def close(self) -> None:
        """Release the parts, when nothing runs on them; idempotent."""
        ...


class GreenParts:
    """Parts that are green contexts.

    Workers take the GPU from its two ends in turn, so that the first (prefill) and the second are
    apart at all shares that together fill at most the GPU.
    """

    def __init__(self, contexts: Contexts, device: torch.device) -> None:
        self._contexts = contexts
        self._device = device
        self._made: list[GreenContext] = []

    def open(self, rungs: Sequence[WorkerRung]) -> Mapping[int, Part]:
        probe = SmProbe(self._device)
        whole = len(probe.run())
        try:
            parts = self._make(rungs)
        except DriverError as reason:
            raise EngineFailure(NO_GREEN.format(reason=reason)) from reason
        seen = {rung_id: _seen(part, probe) for rung_id, part in parts.items()}
        check_shares(rungs, seen, whole)
        check_apart(rungs, seen)
        logger.info("multiprocessors seen: %s", _counts(rungs, seen))
        return parts

    def close(self) -> None:
        while self._made:
            self._contexts.destroy(self._made.pop())

    def _make(self, rungs: Sequence[WorkerRung]) -> dict[int, Part]:
        """Create the parts. Raises DriverError: a call refused, or a device not divisible."""
        split = self._contexts.split()
        if split.combines_rest:
            try:
                return self._make_of(split, rungs)
            except DriverError as refusal:
                logger.warning("groups and the rest of a split were not combined: %s", refusal)
                self.close()
        if split.rest is not None:
            logger.info(
                "%d of %d multiprocessors are in no group: only jobs on the whole GPU use them",
                *(split.rest.sm_count, split.num_sms),
            )
        return self._make_of(replace(split, combines_rest=False), rungs)

    def _make_of(self, split: SmSplit, rungs: Sequence[WorkerRung]) -> dict[int, Part]:
        ends = TwoEnds(split)
        from_start = {
            worker_id: index % 2 == 0
            for index, worker_id in enumerate(sorted({rung.worker_id for rung in rungs}))
        }
        return {rung.rung_id: self._part(rung, ends, from_start[rung.worker_id]) for rung in rungs}

    def _part(self, rung: WorkerRung, ends: TwoEnds, is_from_start: bool) -> Part:
        assert rung.share is not None, "a context has one share"
        # a stream of its own, or workers would wait for each other
        if rung.share >= 1.0 - _EPSILON:
            own = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
            return Part(None, own)
        green = self._contexts.create(
            ends.from_start(rung.share) if is_from_start else ends.from_end(rung.share)
        )
        self._made.append(green)
        stream = torch.cuda.ExternalStream(green.stream, self._device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return Part(green, stream)


class ThreadParts:
    """CPU twin of `GreenParts`: nothing confines a thread, and nothing is verified."""

    def open(self, rungs: Sequence[WorkerRung]) -> Mapping[int, Part]:
        return {rung.rung_id: Part(None, None) for rung in rungs}

    def close(self) -> None:
        """Nothing is held."""


def parts_for(spec: UnitSpec) -> Parts:
    """Return the parts of the unit's device. Raises EngineFailure without a driver."""
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


def _counts(rungs: Sequence[WorkerRung], seen: Seen) -> str:
    return ", ".join(f"{len(seen[rung.rung_id])} at {rung.share:g}" for rung in rungs)
