"""A layout under construction."""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from muxcluster.placement.search.layout import PlacedUnit, UnitBuilder


class Draft:
    """A layout under construction: units, how crowded each is, and the meshes in use.

    Its units change through `open` and `replace` only.
    """

    def __init__(self, builder: UnitBuilder, units: Iterable[PlacedUnit] = ()) -> None:
        self.builder = builder
        self.units = list(units)
        # (crowding, position); entries of units that were replaced are dropped when they are met
        self._queue = [(unit.crowding, position) for position, unit in enumerate(self.units)]
        heapify(self._queue)
        self.room = builder.room(self.units)

    def open(self, unit: PlacedUnit) -> None:
        """Add a unit on idle GPUs."""
        heappush(self._queue, (unit.crowding, len(self.units)))
        self.units.append(unit)
        self.room.take(unit.gpu, unit.tp, unit.count)

    def can_grow(self, unit: PlacedUnit) -> bool:
        """Return whether a mesh of twice its GPUs fits in its place; of equal ones none grows."""
        if unit.count > 1:
            return False
        self.room.free(unit.gpu, unit.tp)
        fits = self.room.fits(unit.gpu, 2 * unit.tp)
        self.room.take(unit.gpu, unit.tp)
        return fits

    def replace(self, position: int, unit: PlacedUnit) -> None:
        """Replace a unit by one with other meshes or models."""
        old = self.units[position]
        self.room.free(old.gpu, old.tp, old.count)
        self.room.take(unit.gpu, unit.tp, unit.count)
        self.units[position] = unit
        heappush(self._queue, (unit.crowding, position))

    def roomiest(self, most: int) -> list[int]:
        """Return the positions of the units with most room, at most so many."""
        if len(self.units) <= most:
            return list(range(len(self.units)))
        found: dict[int, float] = {}
        while len(found) < most and self._queue:
            crowding, position = heappop(self._queue)
            if self.units[position].crowding == crowding:
                found[position] = crowding
        for position, crowding in found.items():
            heappush(self._queue, (crowding, position))
        return list(found)
