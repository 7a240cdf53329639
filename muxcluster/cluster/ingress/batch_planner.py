"""Where the lines of a server's batches may run: the units that the controller wants now."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from muxcluster.batch.plan.setting import settings_in
from muxcluster.cluster.state.desired import Desired
from muxcluster.config.planner_input import problem
from muxcluster.core.errors import MuxClusterError
from muxcluster.sim.batch.setting import Setting

PERIOD_S = 10.0  # how long an answer of the controller counts


class ServedSettings:
    """Returns the units of each served model, asked from the controller every few seconds.

    Every piece of a batch is planned for the units of its time: when rates or nodes change the
    plan of the units, the next piece follows.
    """

    def __init__(self, desired: Callable[[], Awaitable[Desired | None]]) -> None:
        """desired: asks the controller what runs now."""
        self._desired = desired
        self._found: Mapping[str, Sequence[Setting]] = {}
        self._asked_s: float | None = None

    async def __call__(self) -> Mapping[str, Sequence[Setting]]:
        """Return the settings by model; the last known ones if the controller does not answer."""
        now = time.monotonic()
        if self._asked_s is None or now - self._asked_s > PERIOD_S:
            with contextlib.suppress(MuxClusterError):
                desired = await self._desired()
                if desired is not None:
                    self._found = await asyncio.to_thread(_settings, desired)
                    self._asked_s = now
        return self._found


def _settings(desired: Desired) -> Mapping[str, Sequence[Setting]]:
    asked = problem(desired.config, desired.nodes)
    return {
        model.name: settings_in(desired.config, model.name, desired.plan, asked)
        for model in desired.config.models
    }
