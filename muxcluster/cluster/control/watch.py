"""What the controller knows of each unit: its last report, and the time in its phase."""

import asyncio
import logging
from dataclasses import replace
from time import monotonic
from typing import Any

from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayError

from muxcluster.cluster.state.desired import Record
from muxcluster.cluster.state.reconcile import ObservedUnit, Phase
from muxcluster.cluster.units.actors import find_actor
from muxcluster.cluster.units.report import UnitReport
from muxcluster.core.inputs.carried import is_older, talks_to

logger = logging.getLogger(__name__)

ASK_PERIOD_S = 0.5
ASK_TIMEOUT_S = 5.0
# Unanswered polls in a row after which a unit that has answered before counts as hung. It
# costs all its requests a recompute, so it takes longer than for the ingress to look elsewhere.
MOST_MISSES = 3


class UnitWatch:
    """Poll one unit from `start` to `close`."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.report: UnitReport | None = None
        self.has_asked = False
        self.drain_until_s: float | None = None
        self.drain_s = 0.0
        self.is_stopping = False
        self.was_ready = False
        self._phase = Phase.STARTING
        self._since_s = monotonic()
        self._misses = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to poll, on the running event loop."""
        self._task = asyncio.create_task(self._ask())

    def close(self) -> None:
        """Stop polling. Idempotent."""
        if self._task is not None:
            self._task.cancel()

    def observed(self, *, is_reachable: bool) -> ObservedUnit:
        """Return the unit for the reconciler."""
        wanted = self.record.target.wanted
        phase = self._phase
        if self.is_stopping:
            phase = Phase.STOPPING
        elif not is_reachable:
            phase = Phase.AWAY
        return ObservedUnit(
            name=self.record.name,
            key=wanted.key,
            mesh=wanted.mesh,
            models=wanted.models,
            phase=phase,
            since_s=self._since_s,
            num_open=self.num_open,
            drain_until_s=self.drain_until_s,
        )

    @property
    def num_open(self) -> int:
        """Open requests in its last report."""
        stats = None if self.report is None else self.report.stats
        return sum(m.num_running + m.num_waiting for m in stats.models) if stats else 0

    @property
    def reason(self) -> str | None:
        """Reason of its failure."""
        if self._phase is Phase.SILENT:
            return "it does not answer"
        return None if self.report is None else self.report.reason

    def drain(self, limit_s: float) -> None:
        """Take no new requests; running ones may stay for `limit_s` seconds."""
        self.drain_s, self.drain_until_s = limit_s, monotonic() + limit_s

    def resume(self) -> None:
        self.drain_until_s = None

    def hear(self, phase: Phase, report: UnitReport | None) -> None:
        """Note its phase, and `report` as its last report, if any."""
        if phase is not self._phase:
            logger.info("%s: %s is %s", self.record.name, self._phase.value, phase.value)
            self._phase, self._since_s = phase, monotonic()
            self.was_ready = self.was_ready or phase is Phase.READY
        self.report = report

    async def _ask(self) -> None:
        while True:
            actor = await asyncio.to_thread(find_actor, self.record.name)
            while actor is not None:
                actor = await self._ask_once(actor)
                self.has_asked = True
                await asyncio.sleep(ASK_PERIOD_S)
            self.has_asked = True
            self.hear(Phase.FAILED, UnitReport(Phase.FAILED, "Ray has ended its process for good"))
            await asyncio.sleep(ASK_PERIOD_S)

    async def _ask_once(self, actor: Any) -> Any | None:
        """Return the actor to ask next time; None if it is gone for good."""
        try:
            report = await asyncio.wait_for(actor.report.remote(), ASK_TIMEOUT_S)
        except (TimeoutError, GetTimeoutError):
            self._misses += 1
            if self._misses >= MOST_MISSES and self._phase is not Phase.STARTING:
                self.hear(Phase.SILENT, self.report)
        except ActorDiedError:
            return None
        except ActorUnavailableError:  # Ray restarts it
            self._misses = 0
            self.hear(Phase.STARTING, None)
        except RayError as error:
            self.hear(Phase.FAILED, UnitReport(Phase.FAILED, str(error).splitlines()[0]))
        else:
            self._misses = 0
            reason = misfit(report, self.record.target.version)
            if reason is not None:
                report = replace(report, phase=Phase.FAILED, reason=reason)
            self.hear(report.phase, report)
        return actor


def misfit(report: UnitReport, wanted: str) -> str | None:
    """Return why a unit cannot serve with the version of muxcluster in its process, else None.

    A newer one than `wanted` can: it is installed before the cluster is told to change to it.
    """
    if not talks_to(report.wire):
        return f"muxcluster {report.version} on its node does not work together with this one"
    if is_older(report.version, wanted):
        return f"its node has muxcluster {report.version}, and {wanted} is wanted: install it there"
    return None
