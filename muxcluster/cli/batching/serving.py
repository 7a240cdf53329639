"""The offline plan of a server's batches: for the units that run when a batch begins."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from muxcluster.api.batches.planning import FileOrder, LivePlan, Read
from muxcluster.api.model_text import ModelTexts
from muxcluster.batch.job import Batch
from muxcluster.batch.store import Pending
from muxcluster.cli.batching.ordering import LocalPlanner
from muxcluster.cli.batching.planning import AUTO
from muxcluster.cli.batching.setting import Setting, settings_in
from muxcluster.cluster.desired import Desired
from muxcluster.config.planning import problem
from muxcluster.core.errors import MuxClusterError

logger = logging.getLogger(__name__)

MOST_LINES = 100_000
"""A longer job runs as it stands in its file: planning it would keep it waiting for minutes."""


class ServerPlanner:
    """As `Planner`. Each model's lines are planned for the unit that serves most of it.

    desired: what the controller has run at the moment. Models that have no unit then, and jobs that
    cannot be planned, run as they stand in their files.
    """

    def __init__(
        self, texts: ModelTexts, desired: Callable[[], Awaitable[Desired | None]], lenient: bool
    ) -> None:
        self._texts = texts
        self._desired = desired
        self._lenient = lenient

    async def plan(self, batch: Batch, lines: Sequence[Pending], read: Read) -> Sequence[LivePlan]:
        """As `Planner.plan`."""
        in_file_order = await FileOrder().plan(batch, lines, read)
        if len(lines) > MOST_LINES:
            return in_file_order
        try:
            desired = await self._desired()
            if desired is None:
                return in_file_order
            names = sorted({line.model for line in lines})
            settings = await asyncio.to_thread(_settings, desired, names)
            planned = [line for line in lines if line.model in settings]
            others = [line for line in lines if line.model not in settings]
            planner = LocalPlanner(self._texts, settings, AUTO, lenient=self._lenient)
            plans = await planner.plan(batch, planned, read)
        except MuxClusterError as error:
            logger.warning("%s runs as it stands in its file: %s", batch.batch_id, error)
            return in_file_order
        logger.info("%s: %s", batch.batch_id, planner.chosen)
        return [*plans, *await FileOrder().plan(batch, others, read)]


def _settings(desired: Desired, names: Sequence[str]) -> Mapping[str, Setting]:
    """Where each model runs, of those that run."""
    asked = problem(desired.config, desired.nodes)
    found = {name: settings_in(desired.config, name, desired.plan, asked) for name in names}
    return {name: settings[0] for name, settings in found.items() if settings}
