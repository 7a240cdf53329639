"""The offline plans of a server's batches, made again when its units change."""

import asyncio
import contextlib
import logging
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from muxcluster.batch.plan.ordering import LocalPlanner
from muxcluster.batch.plan.prediction import AUTO
from muxcluster.batch.plan.setting import settings_in
from muxcluster.batch.service.planning import FileOrder, LivePlan, Read
from muxcluster.batch.store.job import Batch
from muxcluster.batch.store.store import Pending
from muxcluster.cluster.state.desired import Desired
from muxcluster.config.planner_input import problem
from muxcluster.core.errors import MuxClusterError
from muxcluster.http.calls.kept_prompts import KeptPrompts
from muxcluster.http.calls.model_text import ModelTexts
from muxcluster.placement.plan import Plan
from muxcluster.sim.batch.setting import Setting

logger = logging.getLogger(__name__)

# a longer job keeps the order of its file: planning it would take minutes
MOST_LINES = 100_000
PERIOD_S = 10.0  # how often the plan of the units is checked


class OrderedLines:
    """A `LivePlan` of one model's lines: at most `most` at a time; the rest may be reordered."""

    def __init__(self, lines: Iterable[Pending], most: int) -> None:
        self._left = deque(lines)
        self._most = most
        self._num_running = 0
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._left)

    @property
    def left(self) -> Sequence[Pending]:
        """Lines that have not started, in their order."""
        return tuple(self._left)

    def reorder(self, lines: Iterable[Pending]) -> None:
        """Put the lines that are left in the order of `lines`, which may hold others too."""
        left = {line.line for line in self._left}
        self._left = deque(line for line in lines if line.line in left)
        assert len(self._left) == len(left)

    def take(self) -> Sequence[Pending]:
        count = min(len(self._left), self._most - self._num_running)
        self._num_running += count
        return [self._left.popleft() for _ in range(count)]

    def started(self, line: int) -> None:
        pass

    def ended(self, line: int, output_tokens: int | None) -> None:
        self._num_running -= 1

    def close(self) -> None:
        self.is_closed = True


class ServerPlanner:
    """A `Planner` that orders each model's lines for the unit that serves most of it.

    When the controller changes the plan of the units (rates or nodes changed), the lines that are
    left are planned again. Lines of models without a unit, and jobs that cannot be planned, keep
    the order of their file.
    """

    def __init__(
        self,
        texts: ModelTexts,
        desired: Callable[[], Awaitable[Desired | None]],
        max_running: int,
        *,
        lenient: bool,
        kept: KeptPrompts | None = None,
    ) -> None:
        """desired: asks the controller what runs now. max_running: lines of a model at a time.

        kept: gets the prompts of planned lines.
        """
        self._texts = texts
        self._kept = KeptPrompts() if kept is None else kept
        self._desired = desired
        self._max_running = max_running
        self._lenient = lenient
        self._watches: set[asyncio.Task[None]] = set()

    async def plan(self, batch: Batch, lines: Sequence[Pending], read: Read) -> Sequence[LivePlan]:
        """As `Planner.plan`."""
        if len(lines) > MOST_LINES:
            return await FileOrder().plan(batch, lines, read)
        of_model: dict[str, list[Pending]] = defaultdict(list)
        for line in lines:
            of_model[line.model].append(line)
        desired = None
        with contextlib.suppress(MuxClusterError):  # it is asked again
            desired = await self._desired()
        plans = {}
        try:
            for model, each in of_model.items():
                ordered: Sequence[Pending] = each
                if desired is not None:
                    ordered = await self._ordered(desired, batch, each, read)
                plans[model] = OrderedLines(ordered, self._max_running)
        except BaseException:
            self._kept.drop(batch.batch_id)
            raise
        known = None if desired is None else desired.plan
        watch = asyncio.create_task(self._follow(known, batch, list(plans.values()), read))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        watch.add_done_callback(lambda _: self._kept.drop(batch.batch_id))
        return list(plans.values())

    async def _follow(
        self, known: Plan | None, batch: Batch, plans: Sequence[OrderedLines], read: Read
    ) -> None:
        """Reorder the batch's lines for each new plan of the units, until the batch has ended."""
        while not all(each.is_closed for each in plans):
            await asyncio.sleep(PERIOD_S)
            desired = None
            with contextlib.suppress(MuxClusterError):
                desired = await self._desired()
            if desired is None or desired.plan == known:
                continue
            for each in plans:
                if each.left and not each.is_closed:
                    each.reorder(await self._ordered(desired, batch, each.left, read))
            known = desired.plan

    async def _ordered(
        self, desired: Desired, batch: Batch, lines: Sequence[Pending], read: Read
    ) -> Sequence[Pending]:
        """Return all of `lines`, which are of one model, in the planned order."""
        try:
            settings = await asyncio.to_thread(_settings, desired, lines[0].model)
            if not settings:
                return lines
            planner = LocalPlanner(
                self._texts, settings, AUTO, lenient=self._lenient, kept=self._kept
            )
            plans = await planner.plan(batch, lines, read)
        except MuxClusterError as error:
            logger.warning("%s runs as it stands in its file: %s", batch.batch_id, error)
            return lines
        return [line for each in plans for line in each.take()]


def _settings(desired: Desired, name: str) -> Mapping[str, Setting]:
    asked = problem(desired.config, desired.nodes)
    found = settings_in(desired.config, name, desired.plan, asked)
    return {name: found[0]} if found else {}
