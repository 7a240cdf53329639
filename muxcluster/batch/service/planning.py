"""Which lines of a batch start when."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Protocol

from muxcluster.batch.store.job import Batch
from muxcluster.batch.store.store import Pending

Read = Callable[[Pending], bytes]


class LivePlan(Protocol):
    """Hands out each of its lines once, while others run. For one event loop."""

    def __len__(self) -> int:
        """Lines not handed out yet."""
        ...

    def take(self) -> Sequence[Pending]:
        """The lines to start now, in this order; none while those under way are enough."""
        ...

    def started(self, line: int) -> None:
        """The line of that number, handed out, got its first token. Told once at most."""
        ...

    def ended(self, line: int, output_tokens: int | None) -> None:
        """The line, handed out, is over. output_tokens: of one answer; None where there is none."""
        ...

    def close(self) -> None:
        """Nobody asks any more, lines may be left: what the plan holds in its units is freed."""
        ...


class Planner(Protocol):
    """Makes plans for the lines that are left of a batch."""

    async def plan(self, batch: Batch, lines: Sequence[Pending], read: Read) -> Sequence[LivePlan]:
        """Every one of `lines` in one plan. Plans do not wait for each other."""
        ...


class FileOrder:
    """As they stand in the file, a plan for each model."""

    async def plan(self, batch: Batch, lines: Sequence[Pending], read: Read) -> Sequence[LivePlan]:
        of_model: dict[str, list[Pending]] = defaultdict(list)
        for line in lines:
            of_model[line.model].append(line)
        return [InOrder(each) for each in of_model.values()]


class InOrder:
    """A `LivePlan` that knows nothing of memory: all lines at once, in an order that is fixed."""

    def __init__(self, lines: Sequence[Pending]) -> None:
        self._left = lines

    def __len__(self) -> int:
        return len(self._left)

    def take(self) -> Sequence[Pending]:
        taken, self._left = self._left, ()
        return taken

    def started(self, line: int) -> None:
        pass

    def ended(self, line: int, output_tokens: int | None) -> None:
        pass

    def close(self) -> None:
        pass
