"""`simulate`: a stream of requests through many units, and what became of each request."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from muxcluster.core.events import Finished, Rejected
from muxcluster.core.metrics_records import Records
from muxcluster.sim.concurrency import Running
from muxcluster.sim.driver import UnitDriver
from muxcluster.sim.records import RequestTable
from muxcluster.sim.requests import request_of
from muxcluster.sim.routing import shortest_wait
from muxcluster.sim.unit import SimUnit
from muxcluster.workload.arrival import Arrival


@dataclass(frozen=True, slots=True, eq=False)
class SimResult:
    """records: every request, in the order of their ends. end_s: virtual time at the end."""

    records: Records
    end_s: float
    num_jobs: int


class _Replica:
    """One model on one unit. outstanding: tokens of its requests that have not ended."""

    def __init__(self, driver: UnitDriver, model: str) -> None:
        self.driver = driver
        self.outstanding = 0
        spec = next(m for m in driver.unit.spec.models if m.name == model)
        mean_tokens = spec.mean_prompt_tokens + spec.mean_output_tokens
        self.speed = max(spec.rate_per_s * mean_tokens, 1e-9)


class _Fleet:
    """The units, and who serves which model."""

    def __init__(self, units: Sequence[SimUnit], exact: bool) -> None:
        self.num_jobs = 0
        self._replica_of: dict[str, _Replica] = {}
        context: dict[str, int] = {}
        self.drivers = [UnitDriver(unit, self, exact=exact) for unit in units]
        self._replicas: dict[str, list[_Replica]] = {}
        for driver in self.drivers:
            for model in driver.unit.spec.models:
                context[model.name] = max(context.get(model.name, 0), model.max_model_len)
                replica = _Replica(driver, model.name)
                self._replicas.setdefault(model.name, []).append(replica)
        self.table = RequestTable(context)

    def submit(self, arrival: Arrival) -> None:
        now = arrival.time_s
        replicas = self._replicas[arrival.model]
        for replica in replicas:
            replica.driver.advance(now)
        tokens = arrival.prompt_tokens + arrival.output_tokens
        chosen = replicas[0]
        if len(replicas) > 1:
            held = [replica.outstanding for replica in replicas]
            chosen = replicas[shortest_wait(held, [r.speed for r in replicas], tokens)]
        chosen.outstanding += tokens
        self._replica_of[arrival.request_id] = chosen
        self.table.add(arrival)
        chosen.driver.submit(request_of(arrival), now)

    def first_token(self, request_id: str, now: float) -> None:
        self.table.first_token(request_id, now)

    def end(self, event: Finished | Rejected, now: float) -> None:
        if isinstance(event, Finished):
            arrival = self.table.finish(event, now)
        else:
            arrival = self.table.reject(event.request_id)
        replica = self._replica_of.pop(arrival.request_id)
        replica.outstanding -= arrival.prompt_tokens + arrival.output_tokens

    def leave(self, now: float) -> None:
        def num_output(arrival: Arrival) -> int:
            driver = self._replica_of[arrival.request_id].driver
            return driver.scheduler.num_output(arrival.request_id)

        self.table.leave(num_output, now)

    def ran(self, driver: UnitDriver, entry: Running) -> None:
        self.num_jobs += 1


def simulate(
    units: Sequence[SimUnit],
    arrivals: Iterable[Arrival],
    *,
    until_s: float = math.inf,
    exact: bool = True,
) -> SimResult:
    """Run `arrivals` (in order of time) through `units`."""
    fleet = _Fleet(units, exact)
    for arrival in arrivals:
        if arrival.time_s >= until_s:
            break
        fleet.submit(arrival)
    for driver in fleet.drivers:
        driver.advance(until_s)
    end_s = max(driver.now for driver in fleet.drivers)
    fleet.leave(until_s)
    return SimResult(fleet.table.records(), end_s, fleet.num_jobs)
