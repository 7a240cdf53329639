"""Choice of columns: set partition as a linear and as an integer program."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np
import scipy  # its parts are imported when they are first used: most processes need none
from numpy.typing import NDArray

from muxcluster.placement.compat.columns import Column
from muxcluster.placement.compat.meshes import Meshes

SCALE = 1000.0  # of F in the programs: the solver treats objectives within 1e-6 as equal
# Limit of the integer program's search tree nodes times columns, so that no clock is needed.
_EFFORT = 30_000

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Relaxed:
    """Solution of the linear program."""

    objective: float  # F x SCALE less penalties
    used: Floats  # how much of each column
    reduced_costs: Floats  # objective lost by one more of it
    unplaced: Floats  # share of each model that fits into no column


@dataclass(frozen=True, slots=True)
class Chosen:
    """Solution of the integer program: indices of columns, of sizes of idle meshes, of models."""

    columns: tuple[int, ...]
    idle: tuple[int, ...]
    unplaced: tuple[int, ...]
    objective: float  # as of Relaxed
    most: float  # upper bound over the given columns


class Program:
    """Variables: columns, then idle meshes of each size, then models left without a place.

    Rows: each model once; all GPUs in meshes; as many meshes as allowed; for each size, no more
    GPUs in meshes of at least that size than blocks have it.
    """

    def __init__(self, values: Mapping[Column, float], meshes: Meshes, num_models: int) -> None:
        self.columns = sorted(values)
        self._meshes, self._num_models = meshes, num_models
        parts = SCALE * np.array([values[column] for column in self.columns])
        # Larger than any gain from leaving a model out.
        penalty = SCALE + sum(_best_parts(self.columns, parts, num_models))
        idle = np.zeros(len(meshes.sizes))
        self._costs = np.concatenate([-parts, idle, np.full(num_models, penalty)])
        self._levels = [size for size in meshes.sizes if meshes.room(size) < meshes.num_gpus]
        self._rows = self._matrix()
        self._low, self._high = self._limits()

    def relaxed(self) -> Relaxed:
        """Solve the linear program."""
        equal = self._low == self._high
        found = scipy.optimize.linprog(
            self._costs,
            A_ub=self._rows[~equal],
            b_ub=self._high[~equal],
            A_eq=self._rows[equal],
            b_eq=self._low[equal],
            method="highs",
        )
        columns = slice(len(self.columns))
        unplaced = found.x[-self._num_models :]
        return Relaxed(-found.fun, found.x[columns], found.lower.marginals[columns], unplaced)

    def chosen(self, columns: Indices) -> Chosen:
        """Solve the integer program over some columns."""
        others = np.arange(len(self.columns), len(self._costs))
        given = np.concatenate([np.sort(columns), others])
        found = scipy.optimize.milp(
            self._costs[given],
            constraints=scipy.optimize.LinearConstraint(
                self._rows[:, given], self._low, self._high
            ),
            integrality=np.ones(len(given)),
            bounds=scipy.optimize.Bounds(0, self._meshes.num_gpus),
            options={"mip_rel_gap": 0.0, "node_limit": 1 + _EFFORT // len(given)},
        )
        if found.x is None:
            return Chosen((), (), tuple(range(self._num_models)), -np.inf, np.inf)
        taken = np.repeat(given, np.rint(found.x).astype(int))
        return self._read(taken.tolist(), -found.fun, -found.mip_dual_bound)

    def _read(self, taken: list[int], objective: float, most: float) -> Chosen:
        first_idle = len(self.columns)
        first_model = first_idle + len(self._meshes.sizes)
        return Chosen(
            tuple(each for each in taken if each < first_idle),
            tuple(each - first_idle for each in taken if first_idle <= each < first_model),
            tuple(each - first_model for each in taken if each >= first_model),
            objective,
            most,
        )

    def _matrix(self) -> "scipy.sparse.csc_array":
        """[rows, variables]."""
        num_columns, num_models = len(self.columns), self._num_models
        tps, members = zip(*self.columns, strict=True)
        lengths = [len(each) for each in members]
        sizes = np.array([*tps, *self._meshes.sizes])
        models = scipy.sparse.coo_array(
            (np.ones(sum(lengths)), ([*chain(*members)], np.repeat(range(num_columns), lengths))),
            shape=(num_models, len(sizes)),
        )
        levels = [np.where(sizes >= level, sizes, 0) for level in self._levels]
        meshes = np.array([sizes, np.ones(len(sizes)), *levels])
        left_out = np.zeros((len(meshes), num_models))
        return scipy.sparse.csc_array(
            scipy.sparse.block_array(
                [[models, scipy.sparse.eye_array(num_models)], [meshes, left_out]]
            )
        )

    def _limits(self) -> tuple[Floats, Floats]:
        """(least, most) of each row."""
        meshes, num_gpus = self._meshes, self._meshes.num_gpus
        most = num_gpus if meshes.most is None else meshes.most
        room = [meshes.room(level) for level in self._levels]
        once = [1.0] * self._num_models
        low = [*once, num_gpus, -np.inf, *(-np.inf for _ in room)]
        return np.array(low), np.array([*once, num_gpus, most, *room])


def _best_parts(columns: list[Column], parts: Floats, num_models: int) -> list[float]:
    """Return each model's greatest part of F over its columns."""
    best = [0.0] * num_models
    for (_, members), part in zip(columns, parts.tolist(), strict=True):
        for model in members:
            best[model] = max(best[model], part)
    return best
