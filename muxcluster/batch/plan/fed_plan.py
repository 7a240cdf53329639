"""A batch whose lines are fed by their units: planned piece by piece while it runs."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from muxcluster.batch.plan.piece import Learnt, PlannedPiece
from muxcluster.batch.store.pending import Pending, PendingLines
from muxcluster.core.batch_part import LinePlace, PartSink

PIECE_LINES = 8192  # planned together; a unit holds at most twice as many lines of a batch
# lines handed to the runner at once: more would hold up its event loop
_MOST_STARTED = 64

# Plans the lines, knowing what was learnt so far
PlanLines = Callable[[Sequence[Pending], Learnt], Awaitable[PlannedPiece]]


@dataclass(slots=True, eq=False)
class _Part:
    """A part that was given to its unit."""

    part_id: str
    num_left: int  # lines that have not ended


class FedPlan:
    """A `LivePlan` of all lines of a batch. Its units decide when each line's request runs.

    The lines of a piece are sent to their units at once; the next piece is planned while they run.
    Lines that no plan holds run as they come, at most `most_unplanned` at a time.
    """

    def __init__(
        self,
        lines: PendingLines,
        plan_lines: PlanLines,
        sink: PartSink,
        most_unplanned: int,
        on_close: Callable[[], None],
        piece_lines: int = PIECE_LINES,
    ) -> None:
        """lines: in the order in which pieces take them. plan_lines: plans one piece at a time."""
        self._left = lines
        self._num_planning = 0
        self._plan_lines = plan_lines
        self._sink = sink
        self._most_unplanned = most_unplanned
        self._on_close = on_close
        self._piece_lines = piece_lines
        self._learnt = Learnt()
        self._ready: deque[Pending] = deque()
        self._unplanned: deque[Pending] = deque()
        self._unplanned_open: set[int] = set()
        self._places: dict[int, LinePlace] = {}
        self._parts: dict[str, _Part] = {}
        self._model_of: dict[int, str] = {}
        self._results: dict[str, tuple[int, int]] = {}  # by model: answers, output tokens
        self._piecing: asyncio.Task[None] | None = None
        self._is_closed = False

    def __len__(self) -> int:
        """Lines that have not started."""
        return len(self._left) + self._num_planning + len(self._ready) + len(self._unplanned)

    @property
    def orders(self) -> Mapping[str, str]:
        """The order of each model's lines, once one is planned."""
        return self._learnt.orders

    @property
    def in_turn(self) -> Sequence[tuple[str, ...]]:
        """Models that share units and run one after another."""
        last = [(*before, model) for model, before in self._learnt.after.items() if before]
        return [each for each in last if not any(set(each) < set(other) for other in last)]

    async def begin(self) -> None:
        """Plan the first piece. Raises what planning raises."""
        await self._plan_piece()

    async def _plan_piece(self) -> None:
        count = min(self._piece_lines, len(self._left))
        self._num_planning = count
        try:
            lines = await asyncio.to_thread(self._left.take, count)
            self._add(lines, await self._plan_lines(lines, self._learned()))
        finally:
            self._num_planning = 0

    def _learned(self) -> Learnt:
        means = {
            model: tokens / answers for model, (answers, tokens) in self._results.items() if answers
        }
        return Learnt(self._learnt.orders, self._learnt.after, means)

    def _add(self, lines: Sequence[Pending], planned: PlannedPiece) -> None:
        """Give the parts to their units and make their lines ready."""
        if self._is_closed:
            return
        self._learnt = planned.learnt
        of_line = {line.line: line for line in lines}
        queues = []
        for each in planned.parts:
            part_id, numbers = each.part.part_id, each.lines.tolist()
            self._sink.add_part(each.part, each.unit_id)
            self._parts[part_id] = _Part(part_id, len(numbers))
            for number, line in enumerate(numbers):
                self._places[line] = LinePlace(part_id, number)
            queues.append(deque(of_line[numbers[number]] for number in each.sequence.tolist()))
        while queues:
            # units and models begin at the same time
            for queue in queues:
                self._ready.append(queue.popleft())
            queues = [queue for queue in queues if queue]
        self._unplanned.extend(of_line[line] for line in planned.unplanned)
        self._model_of.update({line.line: line.model for line in lines})

    def take(self) -> Sequence[Pending]:
        """Return lines to send to their units now, some at a time. Raises what planning raised."""
        self._go_on()
        free = self._most_unplanned - len(self._unplanned_open)
        taken = _popped(self._unplanned, min(free, _MOST_STARTED))
        self._unplanned_open.update(line.line for line in taken)
        return taken + _popped(self._ready, _MOST_STARTED - len(taken))

    def _go_on(self) -> None:
        """Plan the next piece when half a piece of the last ones is left."""
        piecing = self._piecing
        if piecing is not None and piecing.done():
            self._piecing = None
            piecing.result()
        num_open = sum(part.num_left for part in self._parts.values()) + len(self._unplanned)
        if self._left and self._piecing is None and num_open <= self._piece_lines / 2:
            self._piecing = asyncio.create_task(self._plan_piece())

    def place(self, line: int) -> LinePlace | None:
        """Return the place of a line that has not ended; None if no unit feeds it."""
        return self._places.get(line)

    def started(self, line: int) -> None:
        """Do nothing: the line's unit sees it earlier."""

    def ended(self, line: int, output_tokens: int | None) -> None:
        """Note that a started line has ended; free what its part holds with the last one."""
        self._unplanned_open.discard(line)
        model = self._model_of.pop(line)
        if output_tokens is not None:
            answers, tokens = self._results.get(model, (0, 0))
            self._results[model] = (answers + 1, tokens + output_tokens)
        place = self._places.pop(line, None)
        if place is None:
            return
        part = self._parts[place.part_id]
        part.num_left -= 1
        if part.num_left:
            self._sink.end_line(place)
        else:
            del self._parts[place.part_id]
            self._sink.end_part(place.part_id)

    def close(self) -> None:
        """Free what the parts hold in their units; lines may be left."""
        self._is_closed = True
        if self._piecing is not None:
            self._piecing.cancel()
        for part_id in self._parts:
            self._sink.end_part(part_id)
        self._parts.clear()
        self._on_close()


def _popped(queue: deque[Pending], most: int) -> list[Pending]:
    return [queue.popleft() for _ in range(min(most, len(queue)))]
