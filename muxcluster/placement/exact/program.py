"""A linear or mixed-integer program, built row by row and solved by HiGHS."""

from collections.abc import Iterable

import numpy as np
import scipy  # its parts are imported when they are first used: most processes need none
from numpy.typing import NDArray

_INFEASIBLE = 2  # HiGHS through scipy: result.status
Entry = tuple[int, float]  # (row, coefficient)


class Program:
    """Maximise gains · x, rows between their limits, 0 ≤ x ≤ upper."""

    def __init__(self) -> None:
        self._low: list[float] = []
        self._high: list[float] = []
        self._gains: list[float] = []
        self._upper: list[float] = []
        self._whole: list[bool] = []
        self._rows: list[int] = []
        self._columns: list[int] = []
        self._coefficients: list[float] = []

    def row(self, low: float, high: float) -> int:
        """Add a row with its limits; return its number."""
        self._low.append(low)
        self._high.append(high)
        return len(self._low) - 1

    def column(
        self,
        gain: float,
        entries: Iterable[Entry],
        *,
        upper: float = np.inf,
        whole: bool = False,
    ) -> int:
        """Add a variable, integer if asked; return its number."""
        number = len(self._gains)
        self._gains.append(gain)
        self._upper.append(upper)
        self._whole.append(whole)
        for row, coefficient in entries:
            self._rows.append(row)
            self._columns.append(number)
            self._coefficients.append(coefficient)
        return number

    def optimum(self, time_limit_s: float) -> float:
        """Return the optimum of the linear program, without the integer constraints; infinite if it
        was not reached in time, -infinite if there is no solution."""
        found = self._solved(time_limit_s, None)
        if found.status == _INFEASIBLE:
            return -np.inf
        return -float(found.fun) if found.status == 0 else np.inf

    def whole(self, time_limit_s: float) -> NDArray[np.float64] | None:
        """Return the best integer solution, or the best found in time; None if there is none."""
        found = self._solved(time_limit_s, np.array(self._whole, dtype=int))
        return None if found.x is None else np.asarray(found.x)

    def _solved(
        self, time_limit_s: float, integrality: NDArray[np.int_] | None
    ) -> "scipy.optimize.OptimizeResult":
        return scipy.optimize.milp(
            -np.array(self._gains),
            integrality=integrality,
            bounds=scipy.optimize.Bounds(0, np.array(self._upper)),
            constraints=scipy.optimize.LinearConstraint(
                self._matrix(), np.array(self._low), np.array(self._high)
            ),
            options={"time_limit": max(0.1, time_limit_s), "mip_rel_gap": 0.0},
        )

    def duals(self, time_limit_s: float) -> NDArray[np.float64] | None:
        """Return the dual value of each row's limit in the linear program; None if it was not
        solved. Rows are equalities or have an upper limit only."""
        matrix, low, high = self._matrix(), np.array(self._low), np.array(self._high)
        equal = low == high
        found = scipy.optimize.linprog(
            -np.array(self._gains),
            A_ub=matrix[~equal],
            b_ub=high[~equal],
            A_eq=matrix[equal],
            b_eq=high[equal],
            bounds=np.column_stack([np.zeros(len(self._upper)), self._upper]),
            method="highs",
            options={"time_limit": max(0.1, time_limit_s)},
        )
        if found.status != 0:
            return None
        prices = np.empty(len(low))
        prices[~equal] = -found.ineqlin.marginals
        prices[equal] = -found.eqlin.marginals
        return prices

    def _matrix(self) -> "scipy.sparse.csr_array":
        return scipy.sparse.csr_array(
            (self._coefficients, (self._rows, self._columns)),
            shape=(len(self._low), len(self._gains)),
        )
