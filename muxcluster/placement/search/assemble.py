"""From a layout to plan.json: meshes get nodes and GPUs, units their names."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from muxcluster.placement.plan import PlannedModel, PlannedUnit
from muxcluster.placement.problem import Node, Problem
from muxcluster.placement.search.layout import Placed


@dataclass(frozen=True, slots=True)
class _Seat:
    """GPUs `first` to `first + tp` of a node."""

    node: Node
    first: int
    unit: Placed


def planned_units(
    problem: Problem, units: Sequence[Placed], before: Sequence[PlannedUnit | None] = ()
) -> tuple[PlannedUnit, ...]:
    """The units on nodes: large meshes first, each on the first node with room, so that meshes of
    a power of two lie aligned. `units` fit (Kind.holds).

    before: for each unit, the one whose GPUs it keeps, if any; all are seated anew where the
    others would find no room beside those.
    """
    seats = _seated(problem, units, before) if any(before) else None
    seats = seats or _seated(problem, units, ())
    assert seats is not None, "meshes that fit by count find no seats"
    return tuple(
        PlannedUnit(
            id=f"{seat.node.name}-{number}",
            node=seat.node.name,
            gpus=tuple(range(seat.first, seat.first + seat.unit.tp)),
            tp=seat.unit.tp,
            kv_blocks=seat.unit.estimate.kv_blocks,
            models=_models(problem, seat.unit),
        )
        for number, seat in _numbered(seats)
    )


def _seated(
    problem: Problem, units: Sequence[Placed], before: Sequence[PlannedUnit | None]
) -> list[_Seat] | None:
    """A seat for each unit, None where one finds none."""
    nodes = {node.name: node for node in problem.nodes}
    free = {node.name: [True] * node.num_gpus for node in problem.nodes}
    seats, others = [], []
    for unit, old in zip_longest(units, before):
        if old is None or not _can_keep(old, free[old.node]):
            others.append(unit)
        else:
            seats.append(_Seat(nodes[old.node], old.gpus[0], unit))
            _take(free[old.node], seats[-1])
    for unit in sorted(others, key=lambda unit: (-unit.tp, unit.offers)):
        seat = _first_free(problem, free, unit)
        if seat is None:
            return None
        seats.append(seat)
        _take(free[seat.node.name], seat)
    return seats


def _can_keep(old: PlannedUnit, free: Sequence[bool]) -> bool:
    """Its GPUs lie side by side, and no other unit has one of them."""
    first, end = old.gpus[0], old.gpus[0] + old.tp
    return old.gpus == tuple(range(first, end)) and all(free[first:end])


def _take(free: list[bool], seat: _Seat) -> None:
    free[seat.first : seat.first + seat.unit.tp] = [False] * seat.unit.tp


def _first_free(problem: Problem, free: Mapping[str, Sequence[bool]], unit: Placed) -> _Seat | None:
    for node in problem.nodes:
        if node.gpu != unit.gpu:
            continue
        for first in range(0, node.num_gpus - unit.tp + 1, unit.tp):
            if all(free[node.name][first : first + unit.tp]):
                return _Seat(node, first, unit)
    return None


def _numbered(seats: Iterable[_Seat]) -> Iterable[tuple[int, _Seat]]:
    """By node and GPU; counted anew on each node."""
    number, name = 0, None
    for seat in sorted(seats, key=lambda seat: (seat.node.name, seat.first)):
        number = number + 1 if seat.node.name == name else 0
        name = seat.node.name
        yield number, seat


def _models(problem: Problem, unit: Placed) -> tuple[PlannedModel, ...]:
    found = unit.estimate
    return tuple(
        PlannedModel(
            name=problem.demands[index].name,
            prefill_sm=found.loads.prefill_share,
            decode_sm=share,
            batch=max(1.0, late.batch),
            quota_blocks=quota,
            throughput=rate * served,
        )
        for (index, rate), share, quota, served, late in zip(
            unit.offers,
            found.loads.decode_shares,
            found.quotas,
            found.served,
            found.latencies(),
            strict=True,
        )
    )
