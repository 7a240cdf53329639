"""The objective "fair": every model gets the same part of its rate, as much as there is.

Where a cluster is short, a plan for requests/s serves those that cost least and starves a large
model. So layouts are searched at a part of all rates, by bisection for the greatest part at which
one serves everything; the whole rates are then offered to it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from muxcluster.placement.plan import PlannedUnit
from muxcluster.placement.problem import Problem
from muxcluster.placement.search.layout import PlacedUnit, UnitBuilder, value
from muxcluster.placement.search.replan import HYSTERESIS

SEARCHES = 6  # layouts looked for where not all rates can be served
_ALL = 1 - 1e-3  # part of what is offered that counts as all of it
_DIGITS = 3  # of parts that are compared


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout that was searched at a part of all rates, with the whole rates offered to it."""

    units: Sequence[PlacedUnit]
    serves_part: bool  # it serves the part at which it was searched
    # Of each unit, one by one, that whose GPUs it keeps
    before: Sequence[PlannedUnit | None] = ()


def with_rates(
    builder: UnitBuilder, units: Iterable[PlacedUnit], factor: float
) -> list[PlacedUnit] | None:
    """Return the units with all rates times `factor`; None if they do not fit so.

    builder: of the problem whose rates these are.
    """
    found = []
    for unit in units:
        offers = [(index, rate * factor) for index, rate in unit.offers]
        scaled = builder.with_offers(unit, offers)
        if scaled is None:
            return None
        found.append(scaled)
    return found


def serves_all(builder: UnitBuilder, units: Iterable[PlacedUnit]) -> bool:
    """Return whether the units serve the rates of the builder's problem."""
    return value(units) >= _ALL * builder.total_worth


def least_part(problem: Problem, units: Iterable[PlacedUnit]) -> float:
    """Return the part of its rate that the model served least gets, 0 to 1."""
    served = [0.0] * len(problem.demands)
    for unit in units:
        for (index, rate), part in zip(unit.offers, unit.estimate.served, strict=True):
            served[index] += rate * part
    return min(
        min(1.0, rate / demand.rate) for rate, demand in zip(served, problem.demands, strict=True)
    )


def fairest(problem: Problem, searched: Callable[[float], Candidate | None]) -> Candidate:
    """Return the layout whose least part is greatest, and of equal ones that which serves most.

    searched: the best layout for requests/s at a part of all rates; None where the whole rates do
    not fit it. At 1 there is one.
    """

    def merit(found: Candidate) -> tuple[float, float]:
        return round(least_part(problem, found.units), _DIGITS), value(found.units)

    best = searched(1.0)
    assert best is not None, "a layout fits the rates that it was searched for"
    low = least_part(problem, best.units)
    # None gives all models a greater part than the one with most requests/s serves of all requests.
    high = value(best.units) / sum(each.rate for each in problem.demands)
    for _ in range(SEARCHES - 1):
        if low >= _ALL or high - low < 10**-_DIGITS:
            break
        part = (low + high) / 2
        found = searched(part)
        if found is not None and _is_better(merit(found), merit(best), _moves(found), _moves(best)):
            best = found
        if found is None or not found.serves_part:
            high = part
        else:
            low = part
    return best


def _moves(found: Candidate) -> int:
    """Return how many units are on GPUs where they are not yet."""
    return sum(each is None for each in found.before)


def _is_better(
    found: tuple[float, float], best: tuple[float, float], moves: int, best_moves: int
) -> bool:
    """Compare by merit; whoever moves more must gain HYSTERESIS, as in other replanning."""
    if moves == best_moves:
        return found > best
    needed = HYSTERESIS * best[0]
    return found[0] - best[0] > (needed if moves > best_moves else -needed)
