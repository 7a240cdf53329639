"""The `Planner` of batches that units feed to themselves: of a server, and of `batch run`."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from muxcluster.batch.plan.asked import Served
from muxcluster.batch.plan.fed_plan import FedPlan
from muxcluster.batch.plan.forecast import AskedForecast, forecast
from muxcluster.batch.plan.piece import Learnt, Piece, PlannedPiece, PromptTable, plan_piece
from muxcluster.batch.service.planning import JobFile, LivePlan
from muxcluster.batch.store.job import Batch
from muxcluster.batch.store.pending import Pending, PendingLines
from muxcluster.core.batch_part import PartSink
from muxcluster.core.errors import MuxClusterError, NotReady, Overloaded, RequestError
from muxcluster.http.calls.call import Tokenised
from muxcluster.http.calls.kept_prompts import KeptPrompts
from muxcluster.http.calls.model_text import ModelTexts
from muxcluster.offline.process.side import SideProcess
from muxcluster.sim.batch.setting import Setting

logger = logging.getLogger(__name__)

# Returns by model the units that serve it now, the one that serves most of it first
Settings = Callable[[], Awaitable[Mapping[str, Sequence[Setting]]]]


@dataclass(frozen=True, slots=True)
class PlanRules:
    """How batches are planned."""

    order: str  # a name, or auto
    lenient: bool  # as for requests
    most_unplanned: int  # lines without a plan that run at a time


class FedPlanner:
    """Plans batches in a process of its own, piece by piece, for the units that `sink` feeds.

    A piece that cannot be planned runs as it stands in its file.
    """

    def __init__(
        self,
        texts: ModelTexts,
        settings: Settings,
        sink: PartSink,
        rules: PlanRules,
        kept: KeptPrompts | None = None,
    ) -> None:
        """kept: gets the prompts of planned lines."""
        self._texts = texts
        self._settings = settings
        self._sink = sink
        self._rules = rules
        self._kept = KeptPrompts() if kept is None else kept
        self._process = SideProcess()
        self._forecasts: SideProcess | None = None
        self._numbers = count()
        self.latest: FedPlan | None = None

    @property
    def process(self) -> SideProcess:
        return self._process

    def close(self) -> None:
        """End the planning processes. Idempotent."""
        self._process.close()
        if self._forecasts is not None:
            self._forecasts.close()

    async def plan(self, batch: Batch, lines: PendingLines, file: Path) -> Sequence[LivePlan]:
        """As `Planner.plan`."""

        async def plan_lines(some: Sequence[Pending], learnt: Learnt) -> PlannedPiece:
            return await self._planned(batch, some, file, learnt)

        plan = FedPlan(
            lines,
            plan_lines,
            self._sink,
            self._rules.most_unplanned,
            on_close=lambda: self._kept.drop(batch.batch_id),
        )
        try:
            await plan.begin()
        except BaseException:
            plan.close()
            raise
        self.latest = plan
        return [plan]

    async def predict(self, job: JobFile) -> Mapping[str, Any]:
        """As `Planner.predict`: one file at a time, beside the plans of running batches."""
        if self._forecasts is not None:
            raise Overloaded("the job of another file is being predicted", retry_after_s=5)
        self._forecasts = process = SideProcess()
        try:
            served = await self._served()
            if not any(served.settings.values()):
                raise NotReady("no units are known yet", code="no_capacity")
            asked = AskedForecast(job.path, job.endpoint, job.limits, served, self._rules.order)
            return await process.run(forecast, asked)
        finally:
            # kept it would hold some hundred megabytes for nothing
            await asyncio.shield(asyncio.to_thread(process.close))
            self._forecasts = None

    async def _served(self) -> Served:
        return Served(
            tuple(text.served for text in self._texts),
            await self._settings(),
            self._rules.lenient,
        )

    async def _planned(
        self, batch: Batch, lines: Sequence[Pending], file: Path, learnt: Learnt
    ) -> PlannedPiece:
        deadline_s = batch.order.deadline_s
        try:
            piece = Piece(
                f"{batch.batch_id}/{next(self._numbers)}",
                file.resolve(),
                lines,
                await self._served(),
                self._rules.order,
                float("inf") if deadline_s is None else float(deadline_s),
                learnt,
            )
            planned = await self._process.run(plan_piece, piece)
        except MuxClusterError as error:
            logger.warning("lines of %s run as they stand in their file: %s", batch.batch_id, error)
            return PlannedPiece((), [line.line for line in lines], PromptTable.of({}), learnt)
        for each in planned.parts:
            logger.info(
                "%s: %d lines of %s in order %s to %s",
                batch.batch_id,
                len(each.lines),
                each.part.model,
                each.part.order,
                each.unit_id,
            )
        model_of = {line.line: line.model for line in lines}
        found = await asyncio.to_thread(_tokenised, planned.prompts, model_of, self._texts)
        self._kept.keep(batch.batch_id, found)
        return planned


def _tokenised(
    table: PromptTable, model_of: Mapping[int, str], texts: ModelTexts
) -> dict[int, Tokenised]:
    """Return the prompts by line, as of the models that are served now."""
    found = {}
    for line, prompts in table.by_line().items():
        try:
            found[line] = Tokenised(texts.find(model_of[line]), prompts)
        except RequestError:
            continue  # the model is not served any more
    return found
