"""Simulation of a stream of requests through many units."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from muxcluster.core.served import UnitStats
from muxcluster.sim.core.fleet import Fleet, JobSink
from muxcluster.sim.core.unit import SimUnit
from muxcluster.sim.core.usage import Usage
from muxcluster.workload.arrival import Arrival
from muxcluster.workload.metrics.records import Records


@dataclass(frozen=True, slots=True, eq=False)
class SimResult:
    """Results of a simulation."""

    records: Records  # every request, in the order of their ends
    end_s: float  # virtual time of the last event
    num_jobs: int  # jobs that ran, coalesced ones counted once
    usage: Mapping[str, Usage]  # by unit id; empty if not requested
    stats: tuple[UnitStats, ...]  # of every unit at its end


def simulate(
    units: Sequence[SimUnit],
    arrivals: Iterable[Arrival],
    *,
    until_s: float = math.inf,
    exact: bool = False,
    on_job: JobSink | None = None,
    usage_bin_s: float | None = None,
) -> SimResult:
    """Run `arrivals` (in order of time) through `units`, by default to the end of every request.

    Units also run their own waves and batch jobs. until_s: stop there; requests open then are
    recorded as unfinished. exact: every decode step is a job of its own and is reported to
    `on_job`; otherwise steps that repeat are one job (see fast_forward.py) and nothing else
    differs. on_job: gets each job as it ends, in order within a unit. usage_bin_s: resolution of
    the usage over time, None for no usage.

    Only the lengths of waves are random, by their seeds: the same arguments give the same result.
    Raises KeyError for an arrival whose model no unit has and for waves of a model not on their
    unit, ValueError as `UnitScheduler` does and where no request of a wave can run.
    """
    fleet = Fleet(units, exact=exact, on_job=on_job, usage_bin_s=usage_bin_s)
    fleet.begin()
    for arrival in arrivals:
        if arrival.time_s >= until_s:
            break
        fleet.submit(arrival)
    fleet.stop(until_s)
    end_s = max(driver.now for driver in fleet.drivers)
    return SimResult(
        fleet.table.records(), end_s, fleet.num_jobs, fleet.usage(end_s), fleet.stats(end_s)
    )
