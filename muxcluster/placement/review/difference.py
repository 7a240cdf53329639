"""Difference between two plans: weights that move, units that open or close, changed rates."""

from collections.abc import Iterable
from dataclasses import dataclass

from muxcluster.placement.memory import weight_bytes
from muxcluster.placement.plan import Plan, PlannedUnit
from muxcluster.placement.problem import Problem

_SAME = 1e-6


@dataclass(frozen=True, slots=True)
class Move:
    """Weights of `load_bytes` that unit `to` has to load."""

    model: str
    before: tuple[PlannedUnit, ...]  # the units that have the model now, none for a new model
    to: PlannedUnit
    load_bytes: int
    is_replica: bool  # True if it also stays where it was


@dataclass(frozen=True, slots=True)
class RateChange:
    """Served requests/s of a model of both plans."""

    model: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference between two plans; units are the same if node and GPUs are."""

    moves: tuple[Move, ...]
    kept: tuple[str, ...]  # models of both plans on the same units
    removed: tuple[str, ...]  # models of the old plan only
    # (model, unit) of models that leave a unit but not the cluster
    dropped: tuple[tuple[str, PlannedUnit], ...]
    opened: tuple[PlannedUnit, ...]  # opened, closed: units of one plan only
    closed: tuple[PlannedUnit, ...]
    rates: tuple[RateChange, ...]

    @property
    def load_bytes(self) -> int:
        return sum(move.load_bytes for move in self.moves)

    @property
    def losers(self) -> tuple[RateChange, ...]:
        """Models that are served less than before."""
        return tuple(each for each in self.rates if each.after < each.before * (1 - _SAME))


_Mesh = tuple[str, tuple[int, ...]]


def difference(problem: Problem, before: Plan, after: Plan) -> Difference:
    """Return what changes if `after`, a plan for `problem`, replaces `before`."""
    old, new = _meshes(before), _meshes(after)
    homes, targets = _homes(before), _homes(after)
    names = {demand.name: demand for demand in problem.demands}
    moves = tuple(
        Move(
            name,
            tuple(homes.get(name, {}).values()),
            unit,
            weight_bytes(names[name]),
            bool(homes.get(name, {}).keys() & targets[name].keys()),
        )
        for name in sorted(targets)
        for mesh, unit in targets[name].items()
        if mesh not in homes.get(name, {})
    )
    return Difference(
        moves=moves,
        kept=tuple(name for name in sorted(targets) if targets[name].keys() == _keys(homes, name)),
        removed=tuple(sorted(homes.keys() - targets.keys())),
        dropped=tuple(
            (name, unit)
            for name in sorted(homes.keys() & targets.keys())
            for mesh, unit in homes[name].items()
            if mesh not in targets[name]
        ),
        opened=tuple(unit for mesh, unit in new.items() if mesh not in old),
        closed=tuple(unit for mesh, unit in old.items() if mesh not in new),
        rates=tuple(
            RateChange(name, _served(before.units, name), _served(after.units, name))
            for name in sorted(homes.keys() & targets.keys())
        ),
    )


def _meshes(plan: Plan) -> dict[_Mesh, PlannedUnit]:
    return {(unit.node, unit.gpus): unit for unit in plan.units}


def _homes(plan: Plan) -> dict[str, dict[_Mesh, PlannedUnit]]:
    homes: dict[str, dict[_Mesh, PlannedUnit]] = {}
    for mesh, unit in _meshes(plan).items():
        for model in unit.models:
            homes.setdefault(model.name, {})[mesh] = unit
    return homes


def _keys(homes: dict[str, dict[_Mesh, PlannedUnit]], name: str) -> set[_Mesh]:
    return set(homes.get(name, {}))


def _served(units: Iterable[PlannedUnit], name: str) -> float:
    return sum(model.throughput for unit in units for model in unit.models if model.name == name)
