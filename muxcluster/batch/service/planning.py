"""The `Planner` and `LivePlan` protocols: which lines of a batch start when."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from muxcluster.batch.store.intake import Limits
from muxcluster.batch.store.job import Batch
from muxcluster.batch.store.pending import Pending, PendingLines
from muxcluster.core.batch_part import LinePlace
from muxcluster.core.errors import NotReady

Read = Callable[[Pending], bytes]


class LivePlan(Protocol):
    """Returns each of its lines once, when it is to start. For one event loop."""

    def __len__(self) -> int:
        """Lines that have not started."""
        ...

    def take(self) -> Sequence[Pending]:
        """Return lines to start now, in this order; none while enough are running.

        There may be more at once after them. Raises what planning them raised.
        """
        ...

    def place(self, line: int) -> LinePlace | None:
        """Return the place of a line that its unit feeds; None: it runs when it is sent there."""
        ...

    def started(self, line: int) -> None:
        """Note that a started line has its first token; called once at most for a line."""
        ...

    def ended(self, line: int, output_tokens: int | None) -> None:
        """Note that a started line has ended. output_tokens: of one answer; None without one."""
        ...

    def close(self) -> None:
        """Free what the plan holds in its units; lines may be left."""
        ...


@dataclass(frozen=True, slots=True)
class JobFile:
    """A file of requests that is no batch. endpoint: the only url of its lines; None: any."""

    path: Path
    endpoint: str | None
    limits: Limits


class Planner(Protocol):
    """Makes plans for the lines of a batch that have not ended."""

    async def plan(self, batch: Batch, lines: PendingLines, file: Path) -> Sequence[LivePlan]:
        """Return plans that together hold each of `lines` once and run at the same time.

        file: the batch's input. Raises OSError if it is gone.
        """
        ...

    async def predict(self, job: JobFile) -> Mapping[str, Any]:
        """Return what running the job would take, as JSON; nothing runs.

        Raises RequestError if no line of it can run, Overloaded while others are predicted,
        NotReady where there is nothing to predict with.
        """
        ...


class FileOrder:
    """A `Planner` that keeps the order of the file: one plan for each model."""

    async def plan(self, batch: Batch, lines: PendingLines, file: Path) -> Sequence[LivePlan]:
        of_model: dict[str, list[Pending]] = defaultdict(list)
        for line in sorted(lines.take(len(lines)), key=lambda each: each.line):
            of_model[line.model].append(line)
        return [InOrder(each) for each in of_model.values()]

    async def predict(self, job: JobFile) -> Mapping[str, Any]:
        raise NotReady("this server runs files as they stand and predicts nothing", code="no_plans")


class InOrder:
    """A `LivePlan` that starts all lines at once, in a fixed order."""

    def __init__(self, lines: Sequence[Pending]) -> None:
        self._left = lines

    def __len__(self) -> int:
        return len(self._left)

    def take(self) -> Sequence[Pending]:
        taken, self._left = self._left, ()
        return taken

    def place(self, line: int) -> LinePlace | None:
        return None

    def started(self, line: int) -> None:
        pass

    def ended(self, line: int, output_tokens: int | None) -> None:
        pass

    def close(self) -> None:
        pass
