"""Simulation of a stream of requests through many units: routing, recording, results."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from muxcluster.core.events import Finished, Rejected
from muxcluster.core.request import Request, ServiceClass
from muxcluster.core.served import UnitStats
from muxcluster.scheduling.scheduler import UnitScheduler
from muxcluster.sim.core.concurrency import Running
from muxcluster.sim.core.driver import Feed, UnitDriver
from muxcluster.sim.core.records import RequestTable
from muxcluster.sim.core.timeline import JobSpan
from muxcluster.sim.core.unit import SimUnit
from muxcluster.sim.core.usage import Usage, UsageMeter
from muxcluster.sim.demand.feeding import SimFeed
from muxcluster.sim.demand.requests import request_of
from muxcluster.sim.demand.waves import WaveSource
from muxcluster.workload.arrival import Arrival
from muxcluster.workload.metrics.records import Records


def shortest_wait(outstanding: Sequence[float], speeds: Sequence[float], tokens: float) -> int:
    """Return the index of the replica that would end first with its requests and the new one.

    outstanding: tokens of the model's open requests, by replica. speeds: planned tokens/s of each,
    above 0. tokens: of the new request. The first one wins a tie.
    """
    waits = [(held + tokens) / speed for held, speed in zip(outstanding, speeds, strict=True)]
    return min(range(len(waits)), key=waits.__getitem__)


# Predicted waits for weights that differ by less say nothing: the emptier unit is taken, as by the
# router (`muxcluster/router/routing.py`).
_SLACK_S = 0.02
JobSink = Callable[[JobSpan], None]


class _Replica:
    """One model on one unit."""

    def __init__(self, driver: UnitDriver, model: str) -> None:
        self.driver = driver
        self._model = model
        self.outstanding = 0  # tokens of its requests that have not ended
        spec = next(m for m in driver.unit.spec.models if m.name == model)
        mean_tokens = spec.mean_prompt_tokens + spec.mean_output_tokens
        self.speed = max(spec.rate_per_s * mean_tokens, 1e-9)

    def weights_s(self, now: float) -> float:
        """Seconds until the model's weights could be resident, and those that it costs others."""
        return sum(self.driver.scheduler.outlook(self._model, now))


def _chosen(replicas: Sequence[_Replica], tokens: float, now: float) -> _Replica:
    """Return where a request of `tokens` goes: where its weights are, or come first at least cost
    for others, and of these units to the one with fewest open requests; where weights do not move,
    by `shortest_wait`."""
    if len(replicas) == 1:
        return replicas[0]
    if any(replica.driver.unit.spec.resident_bytes for replica in replicas):
        waits_s = [replica.weights_s(now) for replica in replicas]
        first_s = min(waits_s) + _SLACK_S
        near = [r for r, wait_s in zip(replicas, waits_s, strict=True) if wait_s <= first_s]
        return min(near, key=lambda replica: replica.driver.scheduler.num_open)
    held = [replica.outstanding for replica in replicas]
    return replicas[shortest_wait(held, [r.speed for r in replicas], tokens)]


class Fleet:
    """Units, each advanced only to the next request that may go to it.

    So a unit runs undisturbed by the others between two of its arrivals. exact: see `UnitDriver`.
    """

    def __init__(
        self,
        units: Sequence[SimUnit],
        *,
        exact: bool,
        on_job: JobSink | None = None,
        usage_bin_s: float | None = None,
    ) -> None:
        self.num_jobs = 0
        self._counts_steps = exact
        self._on_job = on_job
        is_watched = on_job is not None
        self._feed_of: dict[str, SimFeed] = {}
        self.drivers = [
            UnitDriver(unit, self, exact=exact and is_watched, feed=self._feed(unit))
            for unit in units
        ]
        self._meters: dict[UnitDriver, UsageMeter] = {}
        if usage_bin_s is not None:
            self._meters = {driver: UsageMeter(driver, usage_bin_s) for driver in self.drivers}
        self._replicas: dict[str, list[_Replica]] = {}
        self._replica_of: dict[str, _Replica] = {}
        self._replica_on: dict[tuple[str, str], _Replica] = {}
        self._source_of: dict[str, WaveSource] = {}
        context: dict[str, int] = {}
        for driver in self.drivers:
            for model in driver.unit.spec.models:
                context[model.name] = max(context.get(model.name, 0), model.max_model_len)
                replica = _Replica(driver, model.name)
                self._replicas.setdefault(model.name, []).append(replica)
                self._replica_on[driver.unit.spec.unit_id, model.name] = replica
        self.table = RequestTable(context)

    def _feed(self, unit: SimUnit) -> Feed | None:
        """Return what hands out the unit's batch job; its requests count as arrived at 0."""
        job = unit.job
        if job is None:
            return None
        feed = job.feed(unit.spec)

        def hand_out(scheduler: UnitScheduler, now: float) -> list[Request]:
            requests = feed(scheduler, now)
            for request in requests:
                self._count(request, feed, unit.spec.unit_id)
            return requests

        return hand_out

    def _count(self, request: Request, feed: SimFeed, unit_id: str) -> None:
        lengths = len(request.prompt_tokens), request.sampling.max_tokens
        arrival = Arrival(0.0, request.request_id, request.model, *lengths, ServiceClass.BATCH)
        replica = self._replica_on[unit_id, request.model]
        replica.outstanding += sum(lengths)
        self._replica_of[arrival.request_id] = replica
        self._feed_of[arrival.request_id] = feed
        self.table.add(arrival)

    def begin(self) -> None:
        """Start the first waves, at 0. Raises KeyError for waves of a model not on their unit.

        Waves stay with their unit, so that units do not disturb one another.
        """
        for driver in self.drivers:
            for waves in driver.unit.waves:
                replica = self._replica_on[driver.unit.spec.unit_id, waves.model]
                self._start(WaveSource(waves, driver.unit.spec.unit_id), replica, 0.0)

    def _start(self, source: WaveSource, replica: _Replica, now: float) -> None:
        for arrival in source.start(now):
            self._source_of[arrival.request_id] = source
            self._put(arrival, replica)

    def submit(self, arrival: Arrival) -> None:
        """Route a request. Raises KeyError where no unit has its model."""
        now = arrival.time_s
        replicas = self._replicas[arrival.model]
        for replica in replicas:
            replica.driver.advance(now)
        tokens = arrival.prompt_tokens + arrival.output_tokens
        self._put(arrival, _chosen(replicas, tokens, now))

    def _put(self, arrival: Arrival, replica: _Replica) -> None:
        """Submit the request to a replica whose unit has been advanced to its time."""
        replica.outstanding += arrival.prompt_tokens + arrival.output_tokens
        self._replica_of[arrival.request_id] = replica
        self.table.add(arrival)
        replica.driver.submit(request_of(arrival), arrival.time_s)

    def stop(self, now: float) -> None:
        """Run to `now` and stop recording."""
        for driver in self.drivers:
            driver.advance(now)
            driver.settle()
        self.table.leave(self._num_output, now)

    def usage(self, now: float) -> Mapping[str, Usage]:
        """Return usage by unit id; empty unless a bin was given."""
        return {d.unit.spec.unit_id: meter.usage(now) for d, meter in self._meters.items()}

    def stats(self, now: float) -> tuple[UnitStats, ...]:
        return tuple(d.scheduler.stats(now, d.unit.spec.unit_id) for d in self.drivers)

    def first_token(self, request_id: str, now: float) -> None:
        self.table.first_token(request_id, now)
        if (feed := self._feed_of.get(request_id)) is not None:
            feed.first_token(request_id)

    def end(self, event: Finished | Rejected, now: float) -> None:
        if isinstance(event, Finished):
            arrival = self.table.finish(event, now)
        else:
            arrival = self.table.reject(event.request_id)
        replica = self._replica_of.pop(arrival.request_id)
        replica.outstanding -= arrival.prompt_tokens + arrival.output_tokens
        feed = self._feed_of.pop(arrival.request_id, None)
        if feed is not None:
            feed.end(event, now)
        source = self._source_of.pop(arrival.request_id, None)
        if source is not None and source.end_one(now):
            self._start(source, replica, now)

    def launched(self, driver: UnitDriver, entries: Sequence[Running]) -> None:
        if self._meters:
            self._meters[driver].launched(driver, entries)

    def ran(self, driver: UnitDriver, entry: Running) -> None:
        self.num_jobs += entry.num_steps if self._counts_steps else 1
        if self._meters:
            self._meters[driver].ran(driver, entry)
        if self._on_job is not None:
            self._on_job(_span(driver, entry))

    def _num_output(self, arrival: Arrival) -> int:
        driver = self._replica_of[arrival.request_id].driver
        return driver.scheduler.num_output(arrival.request_id)


def _span(driver: UnitDriver, entry: Running) -> JobSpan:
    job, steps = entry.job, entry.num_steps
    return JobSpan(
        unit_id=driver.unit.spec.unit_id,
        model=job.model,
        phase=job.phase.value,
        share=job.share,
        start_s=entry.start_s,
        end_s=driver.now,
        num_rows=len(job.rows),
        num_tokens=int(job.rows.counts.sum()) * steps,
        num_steps=steps,
        alone_s=entry.work.seconds * steps,
    )


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
