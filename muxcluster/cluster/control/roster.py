"""Started units: their watches and records, and actions on them."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic

from muxcluster.cluster.control.status import UnitView
from muxcluster.cluster.control.watch import UnitWatch
from muxcluster.cluster.state.desired import Record, Target
from muxcluster.cluster.state.reconcile import Mesh, ObservedUnit
from muxcluster.cluster.units.actors import end_unit, make_unit
from muxcluster.cluster.units.host import UNIT_CLASS
from muxcluster.cluster.units.report import ListenSpec

logger = logging.getLogger(__name__)

CLOSE_S = 10.0  # longest time for a unit to end its processes before it is killed
BACKOFF_S = 2.0
# Longest pause before a failed unit is tried again; it doubles each time.
MOST_BACKOFF_S = 60.0


@dataclass(frozen=True, slots=True)
class Failure:
    """Failures of a unit that did not start, or broke: number in a row, time, reason."""

    count: int
    last_s: float
    reason: str

    @property
    def not_before_s(self) -> float:
        """Time from which it may be tried again."""
        return self.last_s + min(MOST_BACKOFF_S, BACKOFF_S * 2.0 ** (self.count - 1))


class Roster:
    """All units that were started and are not yet gone; performs the reconciler's actions.

    keep: called with the changed records before each action.
    """

    def __init__(
        self,
        records: Sequence[Record],
        listen_spec: ListenSpec,
        keep: Callable[[tuple[Record, ...]], None],
        unit_class: str = UNIT_CLASS,
    ) -> None:
        self._listen_spec = listen_spec
        self._unit_class = unit_class
        self._keep = keep
        self._watches: dict[str, UnitWatch] = {}
        self._endings: dict[str, asyncio.Task[None]] = {}
        self.failures: dict[tuple[str, Mesh], Failure] = {}
        for record in records:
            self._watch(record)

    @property
    def watches(self) -> Sequence[UnitWatch]:
        return tuple(self._watches.values())

    @property
    def is_known(self) -> bool:
        """Whether every unit that existed before has been asked once."""
        return all(watch.has_asked for watch in self._watches.values())

    def observed(self, reachable: frozenset[str]) -> list[ObservedUnit]:
        """Return all units for the reconciler; reachable: ids of Ray's nodes."""
        return [w.observed(is_reachable=w.record.node_id in reachable) for w in self.watches]

    def views(self, reachable: frozenset[str]) -> list[UnitView]:
        return [
            UnitView(
                watch.record,
                unit.phase,
                None if watch.report is None else watch.report.stats,
                watch.reason,
                unit.drain_until_s is not None,
            )
            for watch, unit in zip(self.watches, self.observed(reachable), strict=True)
        ]

    def cannot_share(self) -> frozenset[str]:
        """Return names of nodes where a unit was to share SMs, and found no way to."""
        return frozenset(
            watch.record.target.planned.node
            for watch in self.watches
            if watch.report is not None
            and watch.report.partition == "none"
            and watch.record.target.spec.partition == "auto"
        )

    def not_before(self) -> Mapping[tuple[str, Mesh], float]:
        """Times from which failed units may be tried again."""
        return {place: failure.not_before_s for place, failure in self.failures.items()}

    async def start(self, target: Target, node_id: str, name: str) -> None:
        """Create a unit on that node. Its record is stored first and it is watched even if creation
        fails, so that any part of it can be stopped."""
        record = Record(name, node_id, replace(target, spec=replace(target.spec, unit_id=name)))
        self._keep((*(watch.record for watch in self.watches), record))
        logger.info("start %s on %s", name, target.planned.node)
        try:
            await asyncio.to_thread(make_unit, record, self._unit_class, self._listen_spec)
        finally:
            self._watch(record).has_asked = True  # it is new, so there is no older state to learn

    def drain(self, name: str, limit_s: float) -> None:
        """Send no new requests to that unit."""
        logger.info("drain %s for at most %g s", name, limit_s)
        self._watches[name].drain(limit_s)

    def resume(self, name: str) -> None:
        """Send requests to that unit again."""
        self._watches[name].resume()

    def stop(self, name: str, *, is_broken: bool) -> None:
        """Start to stop a unit; a broken one is not asked to close, and counts as a failure."""
        watch = self._watches[name]
        if watch.is_stopping:
            return
        reason = (watch.reason or "it takes too long to start") if is_broken else None
        logger.info("stop %s%s", name, f": {reason}" if reason else "")
        if reason is not None:
            wanted = watch.record.target.wanted
            before = self.failures.get((wanted.key, wanted.mesh))
            count = 1 if before is None else before.count + 1
            self.failures[wanted.key, wanted.mesh] = Failure(count, monotonic(), reason)
        watch.is_stopping = True
        self._endings[name] = asyncio.create_task(self._end(watch, 0.0 if is_broken else CLOSE_S))

    def forget(self, name: str) -> None:
        """Drop a unit whose node is gone for good."""
        watch = self._watches.pop(name)
        watch.close()
        self._keep(tuple(each.record for each in self.watches))
        self._endings[name] = asyncio.create_task(self._clean_up(name))

    def drop_old_failures(self) -> None:
        """Drop old failures, and those of units that serve by now."""
        ready = {
            (unit.key, unit.mesh)
            for unit in (w.observed(is_reachable=True) for w in self.watches)
            if unit.serves
        }
        now_s = monotonic()
        self.failures = {
            place: failure
            for place, failure in self.failures.items()
            if place not in ready and now_s - failure.last_s < 2 * MOST_BACKOFF_S
        }

    async def stop_all(self) -> None:
        """Stop every unit; return when they are gone."""
        for watch in self.watches:
            self.stop(watch.record.name, is_broken=False)
        await asyncio.gather(*self._endings.values())

    def _watch(self, record: Record) -> UnitWatch:
        watch = self._watches[record.name] = UnitWatch(record)
        watch.start()
        return watch

    async def _end(self, watch: UnitWatch, close_s: float) -> None:
        name = watch.record.name
        await end_unit(name, close_s)
        watch.close()
        self._watches.pop(name, None)
        self._keep(tuple(each.record for each in self.watches))
        self._endings.pop(name, None)

    async def _clean_up(self, name: str) -> None:
        await end_unit(name, 0.0)
        self._endings.pop(name, None)
