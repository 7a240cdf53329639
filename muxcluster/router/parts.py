"""The parts of running batches: which unit feeds each, and which of its lines are over. No I/O."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import count

from muxcluster.core.batch_part import BatchPart, LinePlace


@dataclass(slots=True, eq=False)
class _Placed:
    """A part and its place."""

    part: BatchPart
    unit_id: str
    over: set[int] = field(default_factory=set)
    unit_of: dict[int, str] = field(default_factory=dict)  # by number of each line under way


class BatchParts:
    """Parts by id.

    A unit that has lost a part, or gets it from another one, gets it under a new id: what it still
    hears of the old one is then without effect.
    """

    def __init__(self) -> None:
        self._parts: dict[str, _Placed] = {}
        self._numbers = count()

    def __contains__(self, part_id: str) -> bool:
        return part_id in self._parts

    def add(self, part: BatchPart, unit_id: str) -> None:
        self._parts[part.part_id] = _Placed(part, unit_id, set(part.over))

    def end_line(self, place: LinePlace) -> None:
        placed = self._parts.get(place.part_id)
        if placed is not None:
            placed.over.add(place.number)
            placed.unit_of.pop(place.number, None)

    def end_part(self, part_id: str) -> None:
        self._parts.pop(part_id, None)

    def home(self, part_id: str, unit_ids: Iterable[str]) -> str:
        """Return the unit for the part's lines among `unit_ids`, best first and not empty.

        It changes only where the part's present unit is not among them.
        """
        placed, found = self._parts[part_id], list(unit_ids)
        if placed.unit_id not in found:
            placed.unit_id = found[0]
        return placed.unit_id

    def send(self, place: LinePlace, unit_id: str) -> None:
        """Note that a line's request goes to this unit."""
        self._parts[place.part_id].unit_of[place.number] = unit_id

    def lose(self, unit_id: str) -> None:
        """Note that this unit has lost all requests."""
        for placed in self._parts.values():
            left = {number: at for number, at in placed.unit_of.items() if at != unit_id}
            placed.unit_of = left

    def fresh(self, part_id: str, unit_id: str) -> BatchPart:
        """Return the part as this unit is to feed it, under a new id.

        Lines that have ended or run in another unit are over for it.
        """
        placed = self._parts[part_id]
        elsewhere = (number for number, at in placed.unit_of.items() if at != unit_id)
        over = tuple(sorted(placed.over.union(elsewhere)))
        return replace(placed.part, part_id=f"{part_id}~{next(self._numbers)}", over=over)
