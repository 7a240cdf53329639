"""What parking is worth, simulated: fewest GPUs, a rival on the same GPUs, wakes ahead of requests.

Parts of bench/residency.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import Claim
from bench.planning.parked import (
    Outcome,
    arrivals_of,
    day_of,
    demands_of,
    run,
    with_timers,
)
from muxcluster.placement.problem import Demand
from muxcluster.workload.arrival import Arrival

IN_TIME = 0.99
SYSTEMS = ("ours", "swap", "static")
FAILING = 0.9  # where fewer of swap's requests are in time, it has begun to fail
_GROWTH = 2**0.5  # from one load to the next
_LEAST = 1e-4  # shares are rounded to this


def needed(
    system: str, demands: Sequence[Demand], coming: Sequence[Arrival], most: int
) -> list[Outcome]:
    """Outcomes by rising numbers of GPUs, the fewest with enough requests in time last.

    Twice as many GPUs until enough is in time, then halves of what is between. The last one has
    `most` where no number is enough.
    """
    found: dict[int, Outcome] = {}

    def is_enough(num_gpus: int) -> bool:
        if num_gpus not in found:
            found[num_gpus] = run(system, num_gpus, demands, coming)
        return found[num_gpus].in_time >= IN_TIME

    too_few, enough = 0, 1
    while not is_enough(enough) and enough < most:
        too_few, enough = enough, min(most, 2 * enough)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if is_enough(middle):
            enough = middle
        else:
            too_few = middle
    return [found[num_gpus] for num_gpus in sorted(found) if num_gpus <= enough]


@dataclass(frozen=True, slots=True)
class Fewest:
    """The GPUs that each system needs at one load."""

    load: float  # times the arena's rates
    seconds: float  # virtual ones
    num_requests: int
    requests_per_s: float
    outcomes: Mapping[str, Sequence[Outcome]]  # of each system, the fewest GPUs last
    planned: Outcome  # ours on as many as it needs, laid out by the planner

    @classmethod
    def of(cls, data: Path, load: float, seconds: float, most: int, seed: int) -> "Fewest":
        """Simulate all systems."""
        demands = demands_of(data, load)
        coming = arrivals_of(demands, day_of(data), seconds, seed)
        outcomes = {system: needed(system, demands, coming, most) for system in SYSTEMS}
        rate = round(sum(each.rate for each in demands), 3)
        planned = run("planned", outcomes["ours"][-1].num_gpus, demands, coming)
        return cls(load, seconds, len(coming), rate, outcomes, planned)

    @property
    def num_ours(self) -> int:
        return self.outcomes["ours"][-1].num_gpus

    def claims(self, suffix: str) -> list[Claim]:
        """GPUs of the rivals over ours, and what the planner's own layout has in time there."""
        ours, swap, static = (self.outcomes[system][-1].num_gpus for system in SYSTEMS)
        return [
            Claim(f"gpus_saved_over_static{suffix}", static / ours, "x", 2.0),
            Claim(f"gpus_saved_over_swap{suffix}", swap / ours, "x", 1.0),
            Claim(f"planned_in_time{suffix}", self.planned.in_time, "share", IN_TIME),
        ]

    def told(self) -> dict[str, Any]:
        """What the record says of it."""
        return {
            "load": self.load,
            "virtual_s": self.seconds,
            "num_requests": self.num_requests,
            "requests_per_s": self.requests_per_s,
            "rows": [each.row() for found in self.outcomes.values() for each in found],
            "planned": self.planned.row(),
        }

    def samples(self, suffix: str) -> dict[str, list[float]]:
        """Shares in time by system."""
        return {
            f"{system}{suffix}": [each.in_time for each in found]
            for system, found in self.outcomes.items()
        }


@dataclass(frozen=True, slots=True)
class SameGpus:
    """Ours and swap on the same GPUs, the same requests, at rising loads."""

    num_gpus: int
    rows: Sequence[tuple[float, Outcome, Outcome]]  # load, ours, swap

    @classmethod
    def of(cls, data: Path, num_gpus: int, load: float, load_s: float, seed: int) -> "SameGpus":
        """Simulate from `load` on, as long as ours has enough in time, and until swap has begun to
        fail. load_s: virtual seconds times load."""
        rows: list[tuple[float, Outcome, Outcome]] = []
        while not rows or rows[-1][1].in_time >= IN_TIME or rows[-1][2].in_time >= FAILING:
            demands = demands_of(data, load)
            coming = arrivals_of(demands, day_of(data), load_s / load, seed)
            ours, swap = (run(system, num_gpus, demands, coming) for system in ("ours", "swap"))
            rows.append((load, ours, swap))
            load *= _GROWTH
        return cls(num_gpus, rows)

    def claims(self) -> list[Claim]:
        """At the first load at which swap has begun to fail: requests in time over swap's, which is
        at most the inverse of swap's share, and swap's late ones over ours. The most of the former
        over all loads. And the highest load with enough in time over swap's."""
        failing = (row for row in self.rows if row[2].in_time < FAILING)
        _, ours, swap = next(failing, self.rows[-1])
        most = max(_over(ours.in_time, swap.in_time) for _, ours, swap in self.rows)
        late = _over(1 - swap.in_time, 1 - ours.in_time)
        loads = [self._served(place) for place in (1, 2)]
        return [
            Claim("in_time_over_swap", round(_over(ours.in_time, swap.in_time), 4), "x", 1.0),
            Claim("late_of_swap_over_ours", round(late, 3), "x"),
            Claim("most_in_time_over_swap", round(most, 3), "x", 3.0),
            Claim("load_over_swap", round(loads[0] / loads[1], 3), "x"),
        ]

    def _served(self, place: int) -> float:
        """The highest load at which a system has enough requests in time.

        Between two loads tried, the share is taken to fall evenly with the load; below the first
        one, load and late requests are taken to grow together.
        """
        before = (0.0, 1.0)
        for row in self.rows:
            load, share = row[0], row[place].in_time
            if share < IN_TIME:
                part = (before[1] - IN_TIME) / (before[1] - share)
                return before[0] + part * (load - before[0])
            before = load, share
        return before[0]

    def told(self) -> dict[str, Any]:
        """What the record says of it."""
        rows = [
            {"load": round(load, 2), "ours": ours.row(), "swap": swap.row()}
            for load, ours, swap in self.rows
        ]
        return {"num_gpus": self.num_gpus, "rows": rows}


@dataclass(frozen=True, slots=True)
class Foreseen:
    """Ours with and without foresight, on fewer GPUs than they need."""

    load: float
    rows: Mapping[str, tuple[Outcome, Outcome]]  # by arrivals: without and with it

    @classmethod
    def of(cls, data: Path, load: float, num_gpus: int, seconds: float, seed: int) -> "Foreseen":
        """Simulate the arena's arrivals, and the same with every second model asked by a timer."""
        demands = demands_of(data, load)
        plain = arrivals_of(demands, day_of(data), seconds, seed)
        timed = with_timers(demands, plain, seconds, seed)
        rows = {
            name: (run("ours", num_gpus, demands, each), run("foresight", num_gpus, demands, each))
            for name, each in (("", plain), ("_by_timers", timed))
        }
        return cls(load, rows)

    def claims(self) -> list[Claim]:
        """Late requests without foresight over those with it, and the used part of wakes ahead."""
        found = []
        for name, (without, foreseen) in self.rows.items():
            late = _over(1 - without.in_time, 1 - foreseen.in_time)
            hits = foreseen.ahead_used / max(1, foreseen.ahead)
            found.append(Claim(f"late_cut_by_foresight{name}", round(late, 3), "x", 1.0))
            found.append(Claim(f"foresight_hit_rate{name}", round(hits, 3), "share"))
        return found

    def told(self) -> dict[str, Any]:
        """What the record says of it."""
        rows = [
            {"arrivals": name or "_arena", "without": without.row(), "with": foreseen.row()}
            for name, (without, foreseen) in self.rows.items()
        ]
        return {"load": self.load, "rows": rows}


def _over(share: float, other: float) -> float:
    return share / max(other, _LEAST)
