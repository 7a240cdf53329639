"""Actor around a unit given by its module name: its creator need not import the engine."""

from pkgutil import resolve_name
from typing import Any

from muxcluster.cluster.ray.process_logs import log_as

UNIT_CLASS = "muxcluster.cluster.units.actor:UnitReplica"


class UnitHost:
    """Ray calls to `unit_class` ("module:name"), made of a `UnitSpec` and the other arguments."""

    def __init__(self, unit_class: str, *args: Any) -> None:
        log_as(args[0].unit_id)
        self._unit: Any = resolve_name(unit_class)(*args)

    def report(self) -> Any:
        return self._unit.report()

    def timeline(self) -> Any:
        return self._unit.timeline()

    def check_adapter(self, model: str, path: str) -> Any:
        return self._unit.check_adapter(model, path)

    def close(self) -> None:
        self._unit.close()
