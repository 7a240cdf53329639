"""SMs and KV blocks in use over time, as means of equal spans."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muxcluster.sim.core.concurrency import Running
from muxcluster.sim.core.driver import UnitDriver
from muxcluster.workload.metrics.series import StepSeries

_LEAST_SHARE = 1e-6  # shares are decimal fractions; their sums are not exact
_PARTS = 8  # steps into which the growth of a multi-step job's blocks is divided


@dataclass(frozen=True, slots=True, eq=False)
class Usage:
    """Use of one unit in spans of `bin_s` seconds from 0 on; float64 [bins] each."""

    bin_s: float
    sm_share: NDArray[np.float64]  # SMs in running jobs, 0 to 1
    # SMs in no job while work waits for a place, see `UnitScheduler.has_waiting_work`
    idle_share: NDArray[np.float64]
    kv_share: Mapping[str, NDArray[np.float64]]  # of the pool, by live sequences of each model


class UsageMeter:
    """Measures one unit; its memory grows with the bins, not with the events."""

    def __init__(self, driver: UnitDriver, bin_s: float) -> None:
        self._bin_s = bin_s
        self._blocks: Mapping[str, int] = {}
        self._noted_s = 0.0
        self._num_blocks = driver.unit.spec.num_blocks
        self._sm, self._idle = StepSeries(bin_s), StepSeries(bin_s)
        self._free = 1.0
        self._kv = {model.name: StepSeries(bin_s) for model in driver.unit.spec.models}

    def launched(self, driver: UnitDriver, entries: Sequence[Running]) -> None:
        self._note_share(driver, sum(entry.job.share for entry in entries))
        self._note_blocks(driver)

    def ran(self, driver: UnitDriver, entry: Running) -> None:
        self._note_share(driver, -entry.job.share)
        if entry.num_steps > 1:
            self._ramp(driver)
        self._note_blocks(driver)

    def usage(self, now: float) -> Usage:
        """Return the usage up to the last full bin before `now`."""
        kv = {name: series.means(now) / self._num_blocks for name, series in self._kv.items()}
        return Usage(self._bin_s, self._sm.means(now), self._idle.means(now), kv)

    def _note_share(self, driver: UnitDriver, more: float) -> None:
        self._sm.add(driver.now, more)
        self._free -= more
        is_idle = self._free > _LEAST_SHARE and driver.scheduler.has_waiting_work
        self._idle.set(driver.now, self._free if is_idle else 0.0)

    def _note_blocks(self, driver: UnitDriver) -> None:
        self._blocks, self._noted_s = driver.scheduler.used_blocks(), driver.now
        for name, blocks in self._blocks.items():
            self._kv[name].set(driver.now, blocks)

    def _ramp(self, driver: UnitDriver) -> None:
        """Note blocks that were added step by step since the last note."""
        part_s = (driver.now - self._noted_s) / _PARTS
        for name, blocks in driver.scheduler.used_blocks().items():
            before = self._blocks.get(name, 0)
            if blocks == before:
                continue
            for part in range(_PARTS):
                level = before + (blocks - before) * (part + 0.5) / _PARTS
                self._kv[name].set(self._noted_s + part * part_s, level)
