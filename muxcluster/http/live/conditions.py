"""What is wrong with a server now, in the words that alarms ask for."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from muxcluster.core.residency import WeightState
from muxcluster.core.served import ServedModel
from muxcluster.http.live.events import Event, EventLog
from muxcluster.http.live.units import UP, UnitSeen

STUCK_S = 120.0  # a unit with running requests that computes no token for so long is stalled
OVERLOAD_S = 30.0  # how long a refused request counts
SILENCE = frozenset({"silent", "stalled"})  # states of a unit that says nothing
OK = "ok"


class Condition(StrEnum):
    """A kind of trouble; the first ones matter most."""

    STALLED = "stalled"  # a unit says nothing, or has requests and computes nothing
    DEGRADED = "degraded"  # a unit is not up, or a model has none that is
    OVERLOADED = "overloaded"  # requests are refused because a queue is full
    WAKING = "waking"  # requests wait for a model's weights


@dataclass(frozen=True, slots=True)
class Finding:
    """One condition of one unit or model; of the server, if both are empty."""

    condition: Condition
    unit: str
    model: str
    text: str


def findings(
    units: Sequence[UnitSeen], served: Iterable[ServedModel], refused: Mapping[str, int]
) -> list[Finding]:
    """Return all that is wrong. refused: requests within `OVERLOAD_S` seconds, by model."""
    found = [each for unit in units for each in _of_unit(unit)]
    found.extend(_of_models(units, served))
    for model, count in refused.items():
        text = f"{count} requests refused within {OVERLOAD_S:g} s"
        found.append(Finding(Condition.OVERLOADED, "", model, text))
    return sorted(found, key=lambda each: list(Condition).index(each.condition))


def summary(found: Iterable[Finding]) -> str:
    """Return the names of the conditions, the worst first; `OK` for none."""
    names = {each.condition for each in found}
    return ", ".join(each.value for each in Condition if each in names) or OK


class Conditions(Collector):
    """Looks for conditions, remembers when they changed, and is their metrics.

    units: those of a `UnitHistory`. refused: of `RecentRequests.refused`, since a monotonic time.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        units: Callable[[], Sequence[UnitSeen]],
        served: Callable[[], Iterable[ServedModel]],
        refused: Callable[[float], Mapping[str, int]],
    ) -> None:
        self._units = units
        self._served = served
        self._refused = refused
        self._events = EventLog()
        registry.register(self)

    def now(self) -> list[Finding]:
        """Return what is wrong, the worst first."""
        refused = self._refused(time.monotonic() - OVERLOAD_S)
        return findings(self._units(), self._served(), refused)

    def observe(self) -> None:
        """Note a change. Call it again and again."""
        # weights move often, and have events of their own
        lasting = [each for each in self.now() if each.condition is not Condition.WAKING]
        self._events.note({("", "", "state"): summary(lasting)}, time.time())

    def events(self) -> list[Event]:
        """Return the changes, newest first: of the state of the unit with no name."""
        return self._events.latest()

    def describe(self) -> Iterable[Metric]:
        """Return no samples: registering must not ask the units."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        names = {each.condition for each in self.now()}
        conditions = GaugeMetricFamily(
            "muxcluster:condition",
            "1 while a unit or model is in the condition, as this ingress sees it, else 0.",
            labels=["condition"],
        )
        for each in Condition:
            conditions.add_metric([each.value], each in names)
        ups = GaugeMetricFamily(
            "muxcluster:unit_up", "1 while the unit takes requests, else 0.", labels=["engine"]
        )
        for unit in self._units():
            ups.add_metric([unit.unit_id], unit.state == UP)
        yield from (conditions, ups)


def _of_unit(unit: UnitSeen) -> Iterator[Finding]:
    if unit.state in SILENCE:
        yield Finding(Condition.STALLED, unit.unit_id, "", f"the unit is {unit.state}")
    elif unit.state != UP:
        yield Finding(Condition.DEGRADED, unit.unit_id, "", f"the unit is {unit.state}")
    elif unit.stuck_s > STUCK_S:
        text = f"requests run, and no token was computed for {unit.stuck_s:.0f} s"
        yield Finding(Condition.STALLED, unit.unit_id, "", text)


def _of_models(units: Sequence[UnitSeen], served: Iterable[ServedModel]) -> Iterator[Finding]:
    reports = [unit.stats for unit in units if unit.state == UP and unit.stats is not None]
    for model in served:
        if model.base:
            continue  # units report adapters as their base
        mine = [each for stats in reports for each in stats.models if each.name == model.name]
        if not mine:
            yield Finding(Condition.DEGRADED, "", model.name, "no unit that is up has the model")
        is_waited_for = any(each.num_waiting for each in mine)
        is_there = any(each.weights == WeightState.RESIDENT for each in mine)
        if is_waited_for and not is_there:
            yield Finding(Condition.WAKING, "", model.name, "requests wait for the weights")
