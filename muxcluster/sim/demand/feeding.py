"""Feeding of a planned batch job to a simulated unit."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.core.events import Finished, FinishReason, Rejected
from muxcluster.core.request import PinnedPrefix, Request, ServiceClass
from muxcluster.core.unitspec import UnitSpec
from muxcluster.offline.choice import Unplanned, feeder_of
from muxcluster.offline.feed.feeder import BatchFeeder, Fed, Room
from muxcluster.offline.order.orders import OfflineJob
from muxcluster.offline.prefix.prompts import Prompts
from muxcluster.scheduling.scheduler import UnitScheduler
from muxcluster.sim.demand.requests import sampling_of


@dataclass(frozen=True, slots=True)
class Ran:
    """Totals of requests that ended."""

    prompt_tokens: int = 0  # of requests that finished, as output_tokens
    output_tokens: int = 0
    num_refused: int = 0
    end_s: float = 0.0  # of the last one

    def __add__(self, other: "Ran") -> "Ran":
        return Ran(
            self.prompt_tokens + other.prompt_tokens,
            self.output_tokens + other.output_tokens,
            self.num_refused + other.num_refused,
            max(self.end_s, other.end_s),
        )


def fitting(
    unit: UnitSpec, model: str, prompts: Prompts, output_tokens: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return `output_tokens` cut to the model's context, at least one; int64 [n]."""
    spec = next(each for each in unit.models if each.name == model)
    return np.minimum(output_tokens, np.maximum(spec.max_model_len - prompts.lengths, 1))


class SimFeed:
    """Takes requests from a `BatchFeeder` and reports their ends to it.

    Request ids are `prefix` and the prompt's number.
    """

    def __init__(
        self,
        feeder: BatchFeeder,
        unit: UnitSpec,
        model: str,
        prompts: Prompts,
        output_tokens: NDArray[np.int64],
        prefix: str = "",
    ) -> None:
        """model: one of the unit's. output_tokens: int64 [n], the true lengths."""
        self._feeder = feeder
        self._unit = unit
        self._model = model
        self._prompts = prompts
        self._outputs = output_tokens
        self._prefix = prefix
        self._freed: list[str] = []
        self.ran = Ran()

    def __call__(self, scheduler: UnitScheduler, now: float) -> list[Request]:
        return self.requests(scheduler, self.room(scheduler, now))

    def room(self, scheduler: UnitScheduler, now: float) -> Room:
        """Return the room for the model's job if it is the unit's only batch job."""
        space = scheduler.batch_memory.space(self._model)
        size_bytes, policy = self._unit.mesh_block_bytes, self._unit.scheduler
        return Room(
            now,
            space.num_blocks * size_bytes,
            space.other_blocks * size_bytes,
            policy.token_budget,
        )

    def requests(self, scheduler: UnitScheduler, room: Room) -> list[Request]:
        """Return the requests to submit into `room`; pin their prefixes, unpin unneeded ones."""
        for pin_id in self._freed:
            scheduler.batch_memory.unpin(pin_id)
        self._freed.clear()
        return [self._start(scheduler, fed) for fed in self._feeder.take(room)]

    def _start(self, scheduler: UnitScheduler, fed: Fed) -> Request:
        request = self._request(fed.number)
        for pin in fed.pins:
            tokens = request.prompt_tokens[: pin.num_tokens]
            scheduler.batch_memory.pin(PinnedPrefix(self._pin_id(pin.pin_id), self._model, tokens))
        return request

    def first_token(self, request_id: str) -> None:
        """Note that a fed request got a token from a job that computes prompts."""
        self._feeder.started(self._number(request_id))

    def end(self, event: Finished | Rejected, now: float) -> None:
        """Note that a fed request has ended."""
        number = self._number(event.request_id)
        if isinstance(event, Finished):
            tokens = int(self._prompts.lengths[number]), int(self._outputs[number])
            self.ran += Ran(*tokens, end_s=now)
        else:
            self.ran += Ran(num_refused=1, end_s=now)
        is_whole = isinstance(event, Finished) and event.reason in _WHOLE
        freed = self._feeder.ended(number, int(self._outputs[number]) if is_whole else None)
        self._freed += map(self._pin_id, freed)

    def _pin_id(self, number: int) -> str:
        return f"{self._prefix}{number}"

    def _number(self, request_id: str) -> int:
        return int(request_id.removeprefix(self._prefix))

    def _request(self, number: int) -> Request:
        prompts = self._prompts
        ids = prompts.ids[prompts.offsets[number] : prompts.offsets[number + 1]]
        if prompts.id_tokens > 1:
            ids = np.repeat(ids, prompts.id_tokens)[: prompts.lengths[number]]
        return Request(
            f"{self._prefix}{number}",
            self._model,
            ids,
            sampling_of(int(self._outputs[number])),
            service_class=ServiceClass.BATCH,
        )


@dataclass(frozen=True, slots=True, eq=False)
class UnitJob:
    """The part of a batch job that one unit runs."""

    model: str
    planned: OfflineJob  # `job` with its tree
    job: Unplanned
    order: str  # of `offline.orders`
    expected: float | None = None  # see `feeder_of`

    def feed(self, unit: UnitSpec) -> SimFeed:
        """Return a new feed for this unit. Raises ValueError for an unknown order."""
        prompts = self.job.prompts
        outputs = fitting(unit, self.model, prompts, self.job.output_tokens)
        feeder = feeder_of(self.planned, self.order, self.expected)
        return SimFeed(feeder, unit, self.model, prompts, outputs, f"batch/{unit.unit_id}/")


_WHOLE = (FinishReason.STOP, FinishReason.LENGTH)
