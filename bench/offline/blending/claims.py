"""Claims from the runs of BlendServe's workloads, and the list of those runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.harness import Claim
from bench.offline.blending.runs import Case, Rows
from bench.offline.blending.traces import Mix
from bench.offline.rows import Row

ORDERS = ("dfs", "blend", "fcfs", "random")
SERIAL = ("dfs", "blend")
COMPARED = ("dfs", "blend")


@dataclass(frozen=True, slots=True)
class Part:
    """Mixtures that are run in the same orders with as many requests."""

    mixes: Sequence[Mix]
    num_requests: int
    orders: Sequence[str] = COMPARED
    serial: Sequence[str] = ()  # orders that run without overlap, too

    def cases(self) -> list[Case]:
        """Every mixture in every order, those of one mixture together."""
        return [case for mix in self.mixes for case in self.cases_of(mix)]

    def cases_of(self, mix: Mix) -> list[Case]:
        """Overlapping ones first."""
        cases = [case_of(mix, self.num_requests, order) for order in self.orders]
        serial = [case_of(mix, self.num_requests, order) for order in self.serial]
        return cases + [replace(case, overlap=False) for case in serial]

    def done(self, rows: Rows, seed: int) -> "Part":
        """What of it has run: mixtures that were compared, and orders that all of these ran in."""
        asked = Part((), self.num_requests)
        mixes = [mix for mix in self.mixes if rows.have(asked.cases_of(mix), seed)]
        part = replace(self, mixes=mixes)
        return replace(
            part,
            orders=[
                order
                for order in self.orders
                if rows.have(replace(part, orders=(order,), serial=()).cases(), seed)
            ],
            serial=[
                order
                for order in self.serial
                if rows.have(replace(part, orders=(), serial=(order,)).cases(), seed)
            ],
        )

    def ratios(self, rows: Rows, seed: int) -> list[float]:
        """Throughput of the blend over that of DFS, by mixture."""
        return [
            _ratio(rows, seed, *(case_of(mix, self.num_requests, each) for each in COMPARED))
            for mix in self.mixes
        ]

    def blended(self, rows: Rows, seed: int) -> list[Row]:
        """What came of the blend, by mixture."""
        return [rows.of(case_of(mix, self.num_requests, "blend"), seed) for mix in self.mixes]


def case_of(mix: Mix, num_requests: int, order: str) -> Case:
    """With overlap. No order is told output lengths: plans are made from a sample, the others need
    none."""
    return Case(mix, num_requests, order, sampled=True)


def claims_of(traces: Part, grid: Part, rows: Rows, seed: int) -> list[Claim]:
    """Means over the traces, and over the grid where it was run; with the targets."""
    found = traces.blended(rows, seed)
    claims = [
        Claim("throughput_over_dfs", _mean(traces.ratios(rows, seed)), "x", 1.23),
        Claim("share_of_optimum", _mean([row["share_of_permitted"] for row in found]), "", 0.92),
        Claim("share_of_ideal", _mean([row["share_of_ideal"] for row in found]), ""),
        Claim("prefix_sharing_of_optimum", _mean([row["sharing_kept"] for row in found]), "", 0.97),
    ]
    if grid.mixes:
        claims.append(Claim("grid_over_dfs", _mean(grid.ratios(rows, seed)), "x", 1.225))
    if "blend" in traces.serial:
        gains = [_overlap_gain(rows, seed, case) for case in _blend_serial(traces)]
        claims.append(Claim("overlap_over_serial", _mean(gains), "x"))
    return claims


def _blend_serial(part: Part) -> list[Case]:
    return [case for case in part.cases() if case.order == "blend" and not case.overlap]


def _overlap_gain(rows: Rows, seed: int, serial: Case) -> float:
    return _ratio(rows, seed, serial, replace(serial, overlap=True))


def _ratio(rows: Rows, seed: int, first: Case, second: Case) -> float:
    """Makespan of the first over that of the second."""
    return float(rows.of(first, seed)["makespan_s"] / rows.of(second, seed)["makespan_s"])


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
