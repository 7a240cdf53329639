"""The set partition: columns that together hold every model in one of its splits."""

import math
from collections.abc import Sequence

from muxcluster.placement.estimator import Offer
from muxcluster.placement.exact.columns import Prices
from muxcluster.placement.exact.pieces import Split
from muxcluster.placement.exact.program import Program
from muxcluster.placement.search.layout import PlacedUnit, UnitBuilder

_INF = float("inf")


class Partition:
    """Choose columns (how many of each) and one split per model; greatest merit.

    Rows: one split per model; of each piece as many replicas as the chosen split asks for; the
    meshes of each size that the nodes hold (Kind.holds).
    """

    def __init__(
        self, builder: UnitBuilder, splits: Sequence[Split], columns: Sequence[PlacedUnit]
    ) -> None:
        self._program = Program()
        self._columns = columns
        self._one_split = {
            index: self._program.row(1.0, 1.0) for index in sorted({each.index for each in splits})
        }
        self._pieces: dict[Offer, int] = {
            piece: self._program.row(0.0, 0.0) for split in splits for piece in split.pieces()
        }
        self._most = {
            (gpu, size): most
            for gpu, kind in builder.kinds.items()
            for size, most in kind.slots.items()
        }
        self._slots = {key: self._program.row(-_INF, most) for key, most in self._most.items()}
        for column in columns:
            self._add_column(column)
        for split in splits:
            entries = [
                (self._pieces[split.index, rate], -float(count))
                for rate, count in split.replicas.items()
            ]
            entries.append((self._one_split[split.index], 1.0))
            self._program.column(0.0, entries, upper=1.0, whole=True)

    def _add_column(self, column: PlacedUnit) -> None:
        entries = [(self._pieces[offer], 1.0) for offer in column.offers]
        entries += [
            (row, float(column.count * (column.tp // size)))
            for (gpu, size), row in self._slots.items()
            if gpu == column.gpu and size <= column.tp
        ]
        self._program.column(column.merit, entries, whole=True)

    def chosen(self, time_limit_s: float) -> list[PlacedUnit] | None:
        """Return the best layout of these columns, or the best found in time; None if there is
        none."""
        values = self._program.whole(time_limit_s)
        if values is None:
            return None
        counts = [math.floor(value + 0.5) for value in values[: len(self._columns)]]
        return [
            column
            for column, count in zip(self._columns, counts, strict=True)
            for _ in range(count)
        ]

    def prices(self, time_limit_s: float) -> Prices | None:
        """Return the dual prices of the linear program; None if it has no solution or was not
        solved."""
        duals = self._program.duals(time_limit_s)
        if duals is None:
            return None
        slots = {key: float(duals[row]) for key, row in self._slots.items()}
        meshes = {
            (gpu, tp): sum(
                price * (tp // size)
                for (other, size), price in slots.items()
                if other == gpu and size <= tp
            )
            for gpu, tp in slots
        }
        return Prices(
            optimum=sum(float(duals[row]) for row in self._one_split.values())
            + sum(price * self._most[key] for key, price in slots.items()),
            pieces={piece: float(duals[row]) for piece, row in self._pieces.items()},
            meshes=meshes,
        )
