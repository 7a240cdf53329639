"""Columns of the set partition: a kind of mesh with a set of pieces of models on it."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from muxcluster.placement.estimator import Offer
from muxcluster.placement.hardware import Gpu
from muxcluster.placement.search.layout import PlacedUnit, UnitBuilder

_PROFIT = 1e-6  # least profit that counts


@dataclass(frozen=True, slots=True)
class Prices:
    """Dual prices of the partition's linear program: its optimum, and the cost of a replica of each
    piece and of a mesh of each (GPU, tp)."""

    optimum: float
    pieces: Mapping[Offer, float]
    meshes: Mapping[tuple[Gpu, int], float]

    def profit(self, unit: PlacedUnit) -> float:
        """Return a column's merit less its cost. A column of negative profit is in no layout worth
        more than the optimum plus that profit (fixing by reduced cost)."""
        cost = sum(self.pieces[offer] for offer in unit.offers)
        return unit.merit - cost - unit.count * self.meshes[unit.gpu, unit.tp]


class Pool:
    """All columns found so far, one for each mesh and set of pieces."""

    def __init__(self, builder: UnitBuilder, pieces: Sequence[Offer]) -> None:
        self._builder = builder
        self._pieces = pieces
        self._found: dict[tuple[Gpu, int, tuple[Offer, ...], int], PlacedUnit | None] = {}

    @property
    def columns(self) -> list[PlacedUnit]:
        """The columns that fit their meshes."""
        return [unit for unit in self._found.values() if unit is not None]

    def add(self, unit: PlacedUnit) -> None:
        """Add a column from elsewhere; its offers must be pieces."""
        self._found[unit.gpu, unit.tp, unit.offers, unit.count] = unit

    def column(self, gpu: Gpu, tp: int, offers: Iterable[Offer]) -> PlacedUnit | None:
        """Return the column, or None if the pieces do not fit the mesh."""
        key = (gpu, tp, tuple(sorted(offers)), 1)
        if key not in self._found:
            self._found[key] = self._builder.unit(gpu, tp, key[2])
        return self._found[key]

    def enumerate(self, most: int, end: float) -> bool:
        """Add all columns. False if there are more than `most`, or at the time `end` (of
        time.perf_counter): then only those of few models are complete."""
        level: list[tuple[Gpu, int, tuple[Offer, ...]]] = [
            (gpu, tp, ()) for gpu, tp in self._builder.meshes
        ]
        while level:
            longer = []
            for gpu, tp, offers in level:
                for piece in self._after(offers):
                    if len(self._found) >= most or time.perf_counter() > end:
                        return False
                    # if fewer models do not fit, more never do
                    if self.column(gpu, tp, (*offers, piece)) is not None:
                        longer.append((gpu, tp, (*offers, piece)))
            level = longer
        return True

    def _after(self, offers: tuple[Offer, ...]) -> Iterable[Offer]:
        """Yield pieces of the models after the last one of `offers`."""
        last = offers[-1][0] if offers else -1
        return (piece for piece in self._pieces if piece[0] > last)

    def price(self, prices: Prices, end: float) -> int:
        """Search for columns of positive profit until `end`; return how many were found.

        On each kind of mesh, from each piece on, the piece that adds most profit is added until
        none adds any; this may miss some columns.
        """
        found = 0
        for gpu, tp in self._builder.meshes:
            for first in self._pieces:
                if time.perf_counter() > end:
                    return found
                unit = self._grown(gpu, tp, first, prices)
                found += unit is not None and prices.profit(unit) > _PROFIT
        return found

    def _grown(self, gpu: Gpu, tp: int, first: Offer, prices: Prices) -> PlacedUnit | None:
        unit = self.column(gpu, tp, [first])
        while unit is not None:
            offers = unit.offers
            taken = {index for index, _ in offers}
            larger = (
                self.column(gpu, tp, (*offers, piece))
                for piece in self._pieces
                if piece[0] not in taken
            )
            best = max(filter(None, larger), key=prices.profit, default=unit)
            if prices.profit(best) <= prices.profit(unit) + _PROFIT:
                return unit
            unit = best
        return None
