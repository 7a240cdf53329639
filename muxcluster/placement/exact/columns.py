"""Columns of the set partition: a kind of mesh with a set of pieces of models on it."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from muxcluster.placement.estimator import Offer
from muxcluster.placement.hardware import Gpu
from muxcluster.placement.search.layout import Placed, UnitBuilder

_PROFIT = 1e-6  # The least that counts


@dataclass(frozen=True, slots=True)
class Prices:
    """Of the partition's linear program: its optimum, and what a replica of each piece and a mesh
    of each (GPU, tp) cost there."""

    optimum: float
    pieces: Mapping[Offer, float]
    meshes: Mapping[tuple[Gpu, int], float]

    def profit(self, unit: Placed) -> float:
        """A column's merit above its cost; a column of negative profit is in no layout that is
        worth more than the optimum and that profit (fixing by reduced cost)."""
        cost = sum(self.pieces[offer] for offer in unit.offers)
        return unit.merit - cost - self.meshes[unit.gpu, unit.tp]


class Pool:
    """All columns found so far; a mesh and a set of pieces has one."""

    def __init__(self, builder: UnitBuilder, pieces: Sequence[Offer]) -> None:
        self._builder = builder
        self._pieces = pieces
        self._found: dict[tuple[Gpu, int, tuple[Offer, ...]], Placed | None] = {}

    @property
    def columns(self) -> list[Placed]:
        """Those that fit their meshes."""
        return [unit for unit in self._found.values() if unit is not None]

    def add(self, unit: Placed) -> None:
        """A column from elsewhere; its offers are pieces."""
        self._found[unit.gpu, unit.tp, unit.offers] = unit

    def column(self, gpu: Gpu, tp: int, offers: Iterable[Offer]) -> Placed | None:
        """None where the pieces do not fit the mesh."""
        key = (gpu, tp, tuple(sorted(offers)))
        if key not in self._found:
            self._found[key] = self._builder.unit(gpu, tp, key[2])
        return self._found[key]

    def enumerate(self, most: int, end: float) -> bool:
        """Every column there is. False where there are more than `most`, or `end` (of
        time.perf_counter) came first: then those of few models are in, or most of them."""
        level: list[tuple[Gpu, int, tuple[Offer, ...]]] = [
            (gpu, tp, ()) for gpu, tp in self._builder.meshes
        ]
        while level:
            longer = []
            for gpu, tp, offers in level:
                for piece in self._after(offers):
                    if len(self._found) >= most or time.perf_counter() > end:
                        return False
                    # more models never fit where fewer do not
                    if self.column(gpu, tp, (*offers, piece)) is not None:
                        longer.append((gpu, tp, (*offers, piece)))
            level = longer
        return True

    def _after(self, offers: tuple[Offer, ...]) -> Iterable[Offer]:
        """Pieces of models behind the last one of `offers`."""
        last = offers[-1][0] if offers else -1
        return (piece for piece in self._pieces if piece[0] > last)

    def price(self, prices: Prices, end: float) -> int:
        """Looks for columns of positive profit until `end`; returns how many it found.

        On each kind of mesh, to each piece the piece that adds most profit is added until none
        adds any: it may miss some.
        """
        found = 0
        for gpu, tp in self._builder.meshes:
            for first in self._pieces:
                if time.perf_counter() > end:
                    return found
                unit = self._grown(gpu, tp, first, prices)
                found += unit is not None and prices.profit(unit) > _PROFIT
        return found

    def _grown(self, gpu: Gpu, tp: int, first: Offer, prices: Prices) -> Placed | None:
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
