"""`simulate`: a stream of requests through many units, and what became of each request."""

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
    """records: every request, in the order of their ends. end_s: virtual time of the last event.

    num_jobs: jobs that ran, coalesced ones counted once. usage: by unit id, empty if not asked for.
    stats: of every unit at its end.
    """

    records: Records
    end_s: float
    num_jobs: int
    usage: Mapping[str, Usage]
    stats: tuple[UnitStats, ...]


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

    Beside them, units have the waves that they name. until_s: stop there; requests that are open
    then are recorded as unfinished. exact: every decode step counts as a job of its own and is told
    to `on_job`; otherwise steps that repeat are one job (see fast_forward.py) and nothing else
    differs. on_job: gets each job as it ends, a unit's in order. usage_bin_s: resolution of the
    usage over time, None for no usage.
    Nothing is random but the lengths of waves, by their seeds: the same arguments give the same
    result. Raises KeyError for an arrival whose model no unit has or waves of one that their unit
    has not, ValueError as `UnitScheduler` does and where no request of a wave can run.
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
