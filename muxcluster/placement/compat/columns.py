"""Columns: sets of models that may share a mesh, and their parts of the cluster's score F."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from muxcluster.placement.compat.mesh import fits, value
from muxcluster.placement.compat.solo import Tenant

Column = tuple[int, tuple[int, ...]]  # (tp, ascending indices of the models)
Tenants = Sequence[Mapping[int, Tenant]]  # For each model, by tp; at least one each


class Pool:
    """Columns of one problem with their parts of F; each is estimated once."""

    def __init__(self, tenants: Tenants) -> None:
        self.tenants = tenants
        self._total_rate = sum(next(iter(each.values())).rate for each in tenants)
        self.values: dict[Column, float] = {}

    def fill(self, most: int) -> bool:
        """Add all columns of one model, of two, and so on, at most `most` in all; True if that is
        all of them."""
        layer = list(self._singles())
        while layer:
            if len(layer) > most - len(self.values):
                return False
            self.add(layer)
            layer = list(islice(self._extended(layer), most + 1))
        return True

    def add(self, columns: Iterable[Column]) -> None:
        for column in columns:
            if column not in self.values:
                self.values[column] = self._part(column)

    def beside(self, column: Column) -> Iterator[Column]:
        """Yield the new columns with one model more."""
        tp, members = column
        for index, options in enumerate(self.tenants):
            if index not in members and tp in options:
                for found in self._allowed(tp, tuple(sorted((*members, index)))):
                    if found not in self.values:
                        yield found

    def _singles(self) -> Iterator[Column]:
        for index, options in enumerate(self.tenants):
            for tp in options:
                yield from self._allowed(tp, (index,))

    def _extended(self, layer: Iterable[Column]) -> Iterator[Column]:
        """Yield each set with one model more, once: every subset of an allowed set is allowed."""
        for tp, members in layer:
            for index in range(members[-1] + 1, len(self.tenants)):
                if tp in self.tenants[index]:
                    yield from self._allowed(tp, (*members, index))

    def _allowed(self, tp: int, members: tuple[int, ...]) -> Iterator[Column]:
        if fits([self.tenants[index][tp] for index in members]):
            yield tp, members

    def _part(self, column: Column) -> float:
        """Mesh estimate x its rates / all rates: F is the sum over the meshes."""
        tp, members = column
        models = [self.tenants[index][tp] for index in members]
        return value(models) * sum(each.rate for each in models) / self._total_rate
