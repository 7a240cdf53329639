"""Feeds a unit with the parts of batch jobs that it was given, as its memory comes free. Sans-IO.

It sits in the unit's loop: memory is read and prefixes are pinned between two steps, without delay.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from muxcluster.core.batch_part import BatchPart, LineOver, LinePlace, PartOver
from muxcluster.core.events import Finished, FinishReason, Rejected, StepOutput
from muxcluster.core.request import PinnedPrefix, Request
from muxcluster.core.unitspec import UnitSpec
from muxcluster.offline.feed.feeder import BatchFeeder, Pin, Renewal, Renewed, Room
from muxcluster.offline.feed.parts import feeder_of_part
from muxcluster.offline.joint import JointMemory


class Space(Protocol):
    """Blocks for batch requests: what they might hold alone, and what others hold of these."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def other_blocks(self) -> int: ...


class UnitMemory(Protocol):
    """The unit's memory for batches: `scheduling.memory.batch_memory.BatchMemory`."""

    def space(self, name: str | None) -> Space:
        """Return the space of a model's batch requests now; None: of all models'."""
        ...

    def pin(self, prefix: PinnedPrefix) -> None: ...

    def unpin(self, pin_id: str) -> None: ...


# How often to ask again while lines wait: interactive requests take and free memory too.
ASK_AGAIN_S = 0.05
_WHOLE = (FinishReason.STOP, FinishReason.LENGTH)


@dataclass(slots=True, eq=False)
class FedPart:
    """A part with its feeder, which may be made on any thread."""

    part: BatchPart
    feeder: BatchFeeder
    waiting: dict[int, list[Request]] = field(default_factory=dict)  # by number, not started
    open_lines: dict[int, "_OpenLine"] = field(default_factory=dict)
    over: set[int] = field(default_factory=set)  # numbers for which no further request comes

    @classmethod
    def of(cls, part: BatchPart) -> "FedPart":
        """Make the feeder. Raises ValueError for an unknown order."""
        return cls(part, feeder_of_part(part), over=set(part.over))

    @property
    def is_over(self) -> bool:
        return not len(self.feeder) and not self.open_lines

    def hand_out(self, room: Room) -> Iterator[tuple["_OpenLine", Sequence[Request]]]:
        """Yield the lines that the feeder starts now, with the requests that are here."""
        taken = self.feeder.take(room)
        while taken:
            skipped = 0
            for fed in taken:
                requests = self.waiting.pop(fed.number, [])
                line = _OpenLine(self, fed.number, fed.pins)
                self.open_lines[fed.number] = line
                if not requests and fed.number in self.over:
                    skipped += 1
                yield line, requests
            taken = self.feeder.take(room) if skipped else []


@dataclass(frozen=True, slots=True, eq=False)
class PartRenewal:
    """The plan of a part that is to be made again."""

    part_id: str
    renewal: Renewal

    def __len__(self) -> int:
        """Return the number of lines of the part."""
        return len(self.renewal.known)

    def run(self) -> "PartRenewed":
        """Make it; on any thread, in any process."""
        return PartRenewed(self.part_id, self.renewal.run())


@dataclass(frozen=True, slots=True, eq=False)
class PartRenewed:
    """The renewed plan of a part."""

    part_id: str
    renewed: Renewed


@dataclass(slots=True, eq=False)
class _OpenLine:
    """A line that the feeder has started; its requests may come later."""

    part: FedPart
    number: int
    pins: Sequence[Pin]  # to set once a request with the prompt is here
    request_ids: set[str] = field(default_factory=set)  # that run
    lengths: list[int] = field(default_factory=list)  # output tokens of ended ones
    has_started: bool = False

    @property
    def output_tokens(self) -> int | None:
        """Output tokens of a choice; None if none got any."""
        return round(sum(self.lengths) / len(self.lengths)) if self.lengths else None


@dataclass(slots=True, eq=False)
class _Running:
    """A fed request in the scheduler."""

    line: _OpenLine
    num_tokens: int


class UnitFeeder:
    """Decides when the lines of parts start in a unit.

    The driver gives it every request with a place (`hold`), every output of the scheduler (`note`)
    and asks it before each step what to add (`take`), and which plans to make again (`renewals`):
    that takes longer than a step, so the driver has a process do it. Of a model's parts the
    most urgent is fed; parts of several models divide the memory so that they end together. A line
    whose request comes after its turn starts when it comes.
    """

    def __init__(self, unit: UnitSpec, memory: UnitMemory) -> None:
        """memory: of the unit's scheduler."""
        self._unit = unit
        self._memory = memory
        self._models = frozenset(model.name for model in unit.models)
        self._parts: dict[str, FedPart] = {}
        self._waiting: dict[str, LinePlace] = {}  # by id of the request
        self._running: dict[str, _Running] = {}
        self._released: list[Request] = []
        self._joint = JointMemory()

    def __len__(self) -> int:
        """Return the number of requests that wait for their turn."""
        return len(self._waiting) + len(self._released)

    @property
    def next_s(self) -> float | None:
        """Return after how many seconds to `take` again though nothing happened; None: never."""
        is_waiting = any(len(fed.feeder) for fed in self._parts.values())
        return ASK_AGAIN_S if is_waiting or self._released else None

    def add(self, fed: FedPart) -> None:
        """Feed a part from now on; a known id or a model that is not here is ignored."""
        part = fed.part
        if part.part_id not in self._parts and part.model in self._models:
            self._parts[part.part_id] = fed

    def tell(self, message: LineOver | PartOver) -> None:
        """Apply what the job's owner says of a line or a part; unknown ones are ignored."""
        if isinstance(message, PartOver):
            self._drop(message.part_id)
            return
        fed = self._parts.get(message.place.part_id)
        if fed is None:
            return
        number = message.place.number
        fed.over.add(number)
        line = fed.open_lines.get(number)
        if line is not None and not line.request_ids:
            self._end(line)

    def hold(self, request: Request) -> bool:
        """Keep the request until its turn and return True; False if it may start now."""
        place = request.line
        fed = None if place is None else self._parts.get(place.part_id)
        if place is None or fed is None:
            return False
        line = fed.open_lines.get(place.number)
        if line is not None:
            self._start(line, request)
            return False
        if place.number in fed.over:
            return False
        fed.waiting.setdefault(place.number, []).append(request)
        self._waiting[request.request_id] = place
        return True

    def abort(self, request_id: str) -> bool:
        """Forget a request that waits for its turn; False if it does not."""
        place = self._waiting.pop(request_id, None)
        if place is None:
            before = len(self._released)
            self._released = [each for each in self._released if each.request_id != request_id]
            return len(self._released) < before
        waiting = self._parts[place.part_id].waiting
        left = [each for each in waiting[place.number] if each.request_id != request_id]
        if left:
            waiting[place.number] = left
        else:
            del waiting[place.number]
        return True

    def renewals(self) -> list[PartRenewal]:
        """Return the plans to make again, each of which comes back by `renew`."""
        found = ((each.part.part_id, each.feeder.renewal()) for each in self._parts.values())
        return [PartRenewal(part_id, renewal) for part_id, renewal in found if renewal is not None]

    def renew(self, found: PartRenewed) -> None:
        """Go on by a renewed plan; that of a forgotten part is ignored."""
        fed = self._parts.get(found.part_id)
        if fed is not None:
            fed.feeder.renewed(found.renewed)

    def take(self, now: float) -> list[Request]:
        """Return the requests to add to the scheduler now, after pinning what they share."""
        started, self._released = self._released, []
        for fed, room in self._rooms(now):
            for line, requests in fed.hand_out(room):
                if not requests and line.number in fed.over:
                    self._end(line)
                for request in requests:
                    del self._waiting[request.request_id]
                    self._start(line, request)
                started += requests
        return started

    def note(self, output: StepOutput) -> None:
        """Learn from an output of the scheduler: first tokens, ends, lengths."""
        if not self._running:
            return
        for request_id, count in zip(output.request_ids, output.counts.tolist(), strict=True):
            running = self._running.get(request_id)
            if running is not None and count:
                running.num_tokens += count
                line = running.line
                if not line.has_started:
                    line.has_started = True
                    line.part.feeder.started(line.number)
        for event in output.events:
            if isinstance(event, Finished | Rejected):
                self._note_end(event)

    def _note_end(self, event: Finished | Rejected) -> None:
        running = self._running.pop(event.request_id, None)
        if running is None:
            return
        line = running.line
        line.request_ids.discard(event.request_id)
        # an aborted one has met a stop string, or its job is given up, which ends its part
        is_length = isinstance(event, Finished) and event.reason in (*_WHOLE, FinishReason.ABORT)
        if is_length and running.num_tokens:
            line.lengths.append(running.num_tokens)
        if not line.request_ids:
            self._end(line)

    def _start(self, line: _OpenLine, request: Request) -> None:
        for pin in line.pins:
            prefix = request.prompt_tokens[: pin.num_tokens]
            pin_id = _pin_id(line.part, pin.pin_id)
            self._memory.pin(
                PinnedPrefix(pin_id, request.model, prefix, request.cache_salt, request.adapter)
            )
        line.pins = ()
        line.request_ids.add(request.request_id)
        self._running[request.request_id] = _Running(line, len(request.output_tokens))

    def _end(self, line: _OpenLine) -> None:
        fed = line.part
        del fed.open_lines[line.number]
        fed.over.add(line.number)
        for pin in fed.feeder.ended(line.number, line.output_tokens):
            self._memory.unpin(_pin_id(fed, pin))

    def _drop(self, part_id: str) -> None:
        fed = self._parts.pop(part_id, None)
        if fed is None:
            return
        for pin in sorted(fed.feeder.pinned):
            self._memory.unpin(_pin_id(fed, pin))
        for line in fed.open_lines.values():
            for request_id in line.request_ids:
                del self._running[request_id]
        for requests in fed.waiting.values():
            for request in requests:
                del self._waiting[request.request_id]
                self._released.append(request)

    def _rooms(self, now: float) -> list[tuple[FedPart, Room]]:
        """Return the parts to feed now, one of a model at most, each with its room."""
        current = self._current()
        if not current:
            return []
        draining = [
            fed
            for fed in self._parts.values()
            if fed.open_lines and fed is not current.get(fed.part.model)
        ]
        if len(current) == 1 and all(fed.part.model in current for fed in draining):
            ((model, fed),) = current.items()
            room = self._room(model, now)
            held = sum(each.feeder.open_bytes for each in draining)
            return [(fed, room._replace(size_bytes=max(0.0, room.size_bytes - held)))]
        feeders = {fed.part.part_id: fed.feeder for fed in (*current.values(), *draining)}
        rooms = self._joint.rooms(feeders, self._room(None, now))
        return [(fed, rooms[fed.part.part_id]) for fed in current.values()]

    def _current(self) -> dict[str, FedPart]:
        """Return the part of each model that lines are taken from."""
        busy = {fed.part.model for fed in self._parts.values() if not fed.is_over}
        current: dict[str, FedPart] = {}
        for fed in self._parts.values():
            part = fed.part
            if not len(fed.feeder) or busy.intersection(part.after):
                continue
            best = current.get(part.model)
            if best is None or part.urgency < best.part.urgency:
                current[part.model] = fed
        return current

    def _room(self, model: str | None, now: float) -> Room:
        space, size_bytes = self._memory.space(model), self._unit.mesh_block_bytes
        return Room(
            now,
            space.num_blocks * size_bytes,
            space.other_blocks * size_bytes,
            self._unit.scheduler.token_budget,
        )


def _pin_id(fed: FedPart, pin_id: int) -> str:
    return f"{fed.part.part_id}/{pin_id}"
