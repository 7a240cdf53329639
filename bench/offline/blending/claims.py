"""Claims from the runs of BlendServe's workloads, and the list of those runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.harness import Claim
from bench.offline.blending.runs import LONGEST_PREFIX, Case, Rows
from bench.offline.blending.traces import Mix
from bench.offline.blending.unit import Lane
from bench.offline.rows import Row

BLEND = "blend"
RIVALS = ("dfs", "fcfs", "random", LONGEST_PREFIX)
# BlendServe's own figures, on its testbed and engine: gain over NanoFlow with DFS on four traces
# and on a grid, most of the optimum that it reaches, prefix sharing that it keeps.
PAPER = {"over_dfs": 1.23, "grid_over_dfs": 1.225, "share_of_optimum": 0.9, "sharing_kept": 0.97}
# What is asked of the blend: in the mean over the traces, and in each.
GOAL, LEAST_GOAL = 1.10, 1.03
OPTIMUM_GOAL = 0.92  # of the optimum, above the paper's


@dataclass(frozen=True, slots=True)
class Part:
    """Mixtures of as many requests, each run in every order and every lane."""

    mixes: Sequence[Mix]
    num_requests: int
    rivals: Sequence[str] = RIVALS
    lanes: Sequence[Lane] = tuple(Lane)

    def cases(self) -> list[Case]:
        """Return all runs, those of one mixture together."""
        return [case for mix in self.mixes for case in self.cases_of(mix)]

    def cases_of(self, mix: Mix) -> list[Case]:
        """Return the runs of a mixture, the blend's first."""
        return [
            Case(mix, self.num_requests, order, lane)
            for order in (BLEND, *self.rivals)
            for lane in self.lanes
        ]

    def done(self, rows: Rows, seed: int) -> "Part":
        """Return what of it has run whole: mixtures of which every run is kept."""
        mixes = [mix for mix in self.mixes if rows.have(self.cases_of(mix), seed)]
        return replace(self, mixes=mixes)

    def best_of(self, mix: Mix, orders: Sequence[str], rows: Rows, seed: int) -> Case:
        """Return the run of least makespan among `orders` in any lane."""
        found = [case for case in self.cases_of(mix) if case.order in orders]
        return min(found, key=lambda case: rows.of(case, seed)["makespan_s"])

    def gains_over(self, rivals: Sequence[str], rows: Rows, seed: int) -> list[float]:
        """Return throughput of the blend over that of the best rival, by mixture.

        Both run in the lane that suits them best.
        """
        return [
            _makespan_s(rows, seed, self.best_of(mix, rivals, rows, seed))
            / _makespan_s(rows, seed, self.best_of(mix, (BLEND,), rows, seed))
            for mix in self.mixes
        ]

    def blended(self, rows: Rows, seed: int) -> list[Row]:
        """Return what came of the blend in its best lane, by mixture."""
        return [rows.of(self.best_of(mix, (BLEND,), rows, seed), seed) for mix in self.mixes]


def claims_of(traces: Part, grid: Part, rows: Rows, seed: int) -> list[Claim]:
    """Return means over the traces, and over the grid where it was run; with the targets."""
    found = traces.blended(rows, seed)
    gains = traces.gains_over(traces.rivals, rows, seed)
    over_dfs = traces.gains_over(("dfs",), rows, seed)
    sharing = _mean([row["sharing_kept"] for row in found])
    share = _mean([row["share_of_permitted"] for row in found])
    claims = [
        Claim("throughput_over_best_rival", _mean(gains), "x", GOAL),
        Claim("throughput_over_best_rival_min", min(gains), "x", LEAST_GOAL),
        Claim("throughput_over_dfs_in_any_lane", _mean(over_dfs), "x", PAPER["over_dfs"]),
        Claim("share_of_optimum", share, "", OPTIMUM_GOAL),
        Claim("share_of_ideal", _mean([row["share_of_ideal"] for row in found]), ""),
        Claim("prefix_sharing_of_optimum", sharing, "", PAPER["sharing_kept"]),
    ]
    if Lane.SPLIT in traces.lanes and Lane.MIXED in traces.lanes:
        claims.append(Claim("overlap_over_mixed", _mean(_overlap_gains(traces, rows, seed)), "x"))
    if grid.mixes:
        on_grid = grid.gains_over(grid.rivals, rows, seed)
        claims.append(Claim("grid_over_best_rival", _mean(on_grid), "x"))
        of_dfs = grid.gains_over(("dfs",), rows, seed)
        claims.append(
            Claim("grid_over_dfs_in_any_lane", _mean(of_dfs), "x", PAPER["grid_over_dfs"])
        )
    return claims


def _overlap_gains(part: Part, rows: Rows, seed: int) -> list[float]:
    """Return throughput of the blend on SM partitions over that in the better mixed lane."""
    mixed = [lane for lane in part.lanes if lane is not Lane.SPLIT]
    gains = []
    for mix in part.mixes:
        split = Case(mix, part.num_requests, BLEND, Lane.SPLIT)
        others = (replace(split, lane=lane) for lane in mixed)
        best_s = min(_makespan_s(rows, seed, case) for case in others)
        gains.append(best_s / _makespan_s(rows, seed, split))
    return gains


def _makespan_s(rows: Rows, seed: int, case: Case) -> float:
    return float(rows.of(case, seed)["makespan_s"])


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
