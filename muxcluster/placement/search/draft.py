"""A layout under construction."""

from collections.abc import Iterable

from muxcluster.placement.search.layout import PlacedUnit, UnitBuilder


class Draft:
    """A layout under construction: units, how crowded each is, and the meshes in use."""

    def __init__(self, builder: UnitBuilder, units: Iterable[PlacedUnit] = ()) -> None:
        self.builder = builder
        self.units = list(units)
        self.crowding = [unit.crowding for unit in self.units]
        self.room = builder.room(self.units)

    def open(self, unit: PlacedUnit) -> None:
        """Add a unit on idle GPUs."""
        self.units.append(unit)
        self.crowding.append(unit.crowding)
        self.room.take(unit.gpu, unit.tp)

    def can_grow(self, unit: PlacedUnit) -> bool:
        """Return whether a mesh of twice its GPUs fits in its place."""
        self.room.free(unit.gpu, unit.tp)
        fits = self.room.fits(unit.gpu, 2 * unit.tp)
        self.room.take(unit.gpu, unit.tp)
        return fits

    def replace(self, position: int, unit: PlacedUnit) -> None:
        """Replace a unit by one with another mesh or other models."""
        old = self.units[position]
        self.room.free(old.gpu, old.tp)
        self.room.take(unit.gpu, unit.tp)
        self.units[position] = unit
        self.crowding[position] = unit.crowding
