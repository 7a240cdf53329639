"""Places in workers' memory for adapters that come while a model runs, and who has them."""

from collections.abc import Sequence


class AdapterPlaces:
    """Which adapter has each of a model's places; a row of the running table holds its adapter's.

    Workers read an adapter's files into its place with the first row that needs it. A place that no
    row holds keeps its adapter until another needs one; then that which rested for longest goes.
    """

    def __init__(self, num_places: int) -> None:
        self._adapters = [""] * num_places  # "": none yet
        self._num_rows = [0] * num_places  # that hold the place
        self._of_row: dict[int, int] = {}
        self._resting = list(range(num_places))  # places that no row holds, longest first

    def has_room(self, adapter: str) -> bool:
        """True where `take` would succeed. adapter: its unit id, or empty for none."""
        return not adapter or bool(self._resting) or adapter in self._adapters

    def take(self, row: int, adapter: str) -> None:
        """Let `row`, which holds none, hold the place of `adapter`, or nothing if that is empty.

        There must be room.
        """
        if not adapter:
            return
        assert row not in self._of_row, f"row {row} has a place"
        if adapter in self._adapters:
            place = self._adapters.index(adapter)
        else:
            place = self._resting[0]
            self._adapters[place] = adapter
        if not self._num_rows[place]:
            self._resting.remove(place)
        self._num_rows[place] += 1
        self._of_row[row] = place

    def leave(self, row: int) -> None:
        """Note that no job runs `row` any more, and that its sequence is gone."""
        place = self._of_row.pop(row, None)
        if place is None:
            return
        self._num_rows[place] -= 1
        if not self._num_rows[place]:
            self._resting.append(place)

    def of(self, row: int) -> int:
        """Return the place that `row` holds, 0 if it holds none."""
        return self._of_row.get(row, 0)

    def check(self, rows: Sequence[int]) -> None:
        """Raise AssertionError unless no rows but some of `rows` hold places, each counted."""
        assert self._of_row.keys() <= set(rows), "a free row holds an adapter's place"
        held = list(self._of_row.values())
        assert self._num_rows == [held.count(place) for place in range(len(self._num_rows))]
        resting = [place for place, number in enumerate(self._num_rows) if not number]
        assert sorted(self._resting) == resting, "a place is lost"
        named = [adapter for adapter in self._adapters if adapter]
        assert len(named) == len(set(named)), "an adapter has two places"
