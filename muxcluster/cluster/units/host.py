"""The actor around a unit: named by its module, so that who makes it need not import the engine."""

from pkgutil import resolve_name
from typing import Any

from muxcluster.cluster.ray.process_logs import log_as

UNIT_CLASS = "muxcluster.cluster.units.actor:UnitReplica"


class UnitHost:
    """`unit_class` ("module:name") called with the other arguments, a `UnitSpec` first, behind Ray
    calls."""

    def __init__(self, unit_class: str, *args: Any) -> None:
        log_as(args[0].unit_id)
        self._unit: Any = resolve_name(unit_class)(*args)

    def report(self) -> Any:
        """As `UnitReplica.report`."""
        return self._unit.report()

    def timeline(self) -> Any:
        """As `UnitReplica.timeline`."""
        return self._unit.timeline()

    def close(self) -> None:
        """As `UnitReplica.close`."""
        self._unit.close()
