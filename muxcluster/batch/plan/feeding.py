"""A plan that starts lines in the units of this process as their memory allows."""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from muxcluster.batch.store.store import Pending
from muxcluster.core.request import PinnedPrefix, Unpin
from muxcluster.core.unitspec import UnitSpec
from muxcluster.offline.feed.feeder import BatchFeeder, Fed, Room
from muxcluster.offline.joint import JointMemory
from muxcluster.scheduling.memory.batch_memory import BatchSpace


@dataclass(frozen=True, slots=True, eq=False)
class PlannedLine:
    """A line with its lengths, as plans use it."""

    line: Pending
    tokens: NDArray[np.int32]  # [n], its prompt
    output_tokens: int  # the most, or the expected number
    is_known: bool  # it gets exactly `output_tokens`
    cache_salt: str


class BatchUnit(Protocol):
    """A running unit, as a plan uses it; `engine.unit.Unit` is one."""

    def pin(self, message: PinnedPrefix | Unpin) -> None: ...

    def batch_space(self, model: str | None) -> BatchSpace:
        """Return the memory for batch requests of a model now; None: of all its models."""
        ...


@dataclass(frozen=True, slots=True)
class FedUnit:
    """A unit and its specification."""

    spec: UnitSpec
    unit: BatchUnit

    def room(self, model: str | None) -> tuple[int, int]:
        """Return the bytes for batch requests of the model (None: of all) and the bytes that other
        requests hold of these."""
        space = self.unit.batch_space(model)
        size_bytes = self.spec.mesh_block_bytes
        return space.num_blocks * size_bytes, space.other_blocks * size_bytes


class FedPlan:
    """A `LivePlan` of one model's lines, which a feeder hands out to the units that serve it."""

    def __init__(
        self,
        feeder: BatchFeeder,
        model: str,
        asked: Sequence[PlannedLine],
        units: Sequence[FedUnit],
    ) -> None:
        """feeder: of the prompts of `asked`, in that order. units: of the model, not empty."""
        self._feeder = feeder
        self.model = model
        self._memory: JointMemory | None = None
        self._before: FedPlan | None = None
        self._asked = asked
        self._units = units
        self._numbers = {each.line.line: number for number, each in enumerate(asked)}

    def __len__(self) -> int:
        """Lines that have not started."""
        return len(self._feeder)

    def take(self) -> Sequence[Pending]:
        """Return the lines to start now, after pinning the prefixes they share with later ones."""
        if not len(self._feeder) or not (self._before is None or self._before._is_over):
            return ()
        return [self._start(fed) for fed in self._feeder.take(self._room())]

    def started(self, line: int) -> None:
        """Note that the line has its first token."""
        self._feeder.started(self._numbers[line])

    def ended(self, line: int, output_tokens: int | None) -> None:
        """Note that the line has ended; unpin what no other line needs."""
        self._unpin(self._feeder.ended(self._numbers[line], output_tokens))

    def close(self) -> None:
        """Unpin everything."""
        self._unpin(sorted(self._feeder.pinned))

    def _room(self) -> Room:
        if self._memory is None:
            return self._room_of(self.model)
        return self._memory.rooms(self._room_of(None))[self.model]

    def _room_of(self, model: str | None) -> Room:
        rooms = [unit.room(model) for unit in self._units]
        chunk_tokens = sum(unit.spec.scheduler.token_budget for unit in self._units)
        size_bytes, other_bytes = map(sum, zip(*rooms, strict=True))
        return Room(time.monotonic(), size_bytes, other_bytes, chunk_tokens)

    def _start(self, fed: Fed) -> Pending:
        asked = self._asked[fed.number]
        for pin in fed.pins:
            prefix = asked.tokens[: pin.num_tokens]
            self._tell(PinnedPrefix(self._pin_id(pin.pin_id), self.model, prefix, asked.cache_salt))
        return asked.line

    def _unpin(self, pin_ids: Sequence[int]) -> None:
        for pin_id in pin_ids:
            self._tell(Unpin(self._pin_id(pin_id)))

    def _pin_id(self, number: int) -> str:
        return f"{self.model}/{number}"

    @property
    def _unit_ids(self) -> tuple[str, ...]:
        return tuple(unit.spec.unit_id for unit in self._units)

    @property
    def _is_over(self) -> bool:
        return not len(self._feeder) and not self._feeder.num_open

    @staticmethod
    def sharing_units(plans: Sequence["FedPlan"]) -> list[list["FedPlan"]]:
        """Return the groups of at least two `plans` whose models the same units serve.

        plans: of different models.
        """
        of_units: dict[tuple[str, ...], list[FedPlan]] = defaultdict(list)
        for plan in plans:
            of_units[plan._unit_ids].append(plan)
        return [mine for mine in of_units.values() if len(mine) > 1]

    @staticmethod
    def share_memory(plans: Sequence["FedPlan"]) -> None:
        """Run plans of the same units at once; they divide the units' memory."""
        memory = JointMemory({plan.model: plan._feeder for plan in plans})
        for plan in plans:
            plan._memory = memory

    @staticmethod
    def take_turns(plans: Sequence["FedPlan"]) -> None:
        """Run plans of the same units one after the other."""
        for before, plan in pairwise(plans):
            plan._before = before

    def _tell(self, message: PinnedPrefix | Unpin) -> None:
        for each in self._units:
            each.unit.pin(message)
