"""How the batch tokens that are lost to `fcfs` are lost, and the least loss that targets permit.

python bench/hybrid/frontier.py RECORD.json

GPUs are full at every rate of `bros.py`, so what interactive requests get batch work loses. How
much a served request costs is fitted to our own rows of each setup: batch tokens/s as a line in the
requests/s that are served. By it a loss has two parts: requests that ours serves and `fcfs` leaves
waiting, and all else (jobs that are too short, waits, preemption, copies; below 0 where ours does
more work). The least loss is that of an order which serves exactly those requests that are in time,
on the same GPUs at the same cost, and chooses at which rates others are late, so that the mean over
all points loses least.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import numpy as np

Row = Mapping[str, Any]
_IN_TIME = (0.95, 0.9, 0.85, 0.8, 0.7)


@dataclass(frozen=True, slots=True)
class Exchange:
    """Of one setup: batch tokens/s = `alone` - `cost` x requests/s served."""

    alone: float
    cost: float
    most_served: float  # requests/s, of all its rows

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Exchange":
        """Fit the rows of one setup and system, at two rates or more."""
        served = [row["interactive_per_s"][0] for row in rows]
        batch = [row["batch_tokens_per_s"][0] for row in rows]
        slope, alone = np.polyfit(served, batch, 1)
        return cls(float(alone), -float(slope), max(served))


@dataclass(frozen=True, slots=True)
class Loss:
    """One point: batch tokens/s lost to `fcfs`, as parts of those of `fcfs`."""

    setup: str
    rate_per_s: float
    in_time: float  # part of the first tokens
    lost: float
    by_served: float  # to requests that are served and that `fcfs` leaves waiting

    @property
    def by_all_else(self) -> float:
        """To short jobs, waits, preemption and copies; below 0: more work is done."""
        return self.lost - self.by_served


def losses(rows: Sequence[Row], ours: str) -> list[Loss]:
    """Return the points that both systems ran. rows: of one kind of lengths, with batch load."""
    exchanges, found = exchanges_of(rows, ours), []
    for row, other in _pairs(rows, ours):
        batch = other["batch_tokens_per_s"][0]
        more = row["interactive_per_s"][0] - other["interactive_per_s"][0]
        found.append(
            Loss(
                row["setup"],
                row["rate_per_s"],
                row["ttft_attainment"][0],
                1.0 - row["batch_tokens_per_s"][0] / batch,
                exchanges[row["setup"]].cost * more / batch,
            )
        )
    return found


def exchanges_of(rows: Sequence[Row], ours: str) -> dict[str, Exchange]:
    """Return that of every setup."""
    mine = [row for row in rows if row["system"] == ours]
    setups = dict.fromkeys(row["setup"] for row in mine)
    return {name: Exchange.of([row for row in mine if row["setup"] == name]) for name in setups}


def least_loss(rows: Sequence[Row], ours: str, in_time: float) -> float:
    """Return the least mean loss at which so many of the first tokens are in time, as a mean.

    inf where so many cannot be.
    """
    exchanges, points = exchanges_of(rows, ours), []
    for row, other in _pairs(rows, ours):
        each, rate = exchanges[row["setup"]], row["rate_per_s"]
        batch = other["batch_tokens_per_s"][0]
        most = min(1.0, each.most_served / rate)
        kept = max(0.0, each.alone - each.cost * most * rate) / batch
        points.append((each.cost * rate / batch, most, kept))
    spare = sum(most for _, most, _ in points) - in_time * len(points)
    if spare < 0:
        return float("inf")
    total = 0.0
    for gain, most, kept in sorted(points, reverse=True):  # the dearest requests are late first
        late = min(most, spare)
        spare -= late
        total += kept + gain * late
    return 1.0 - total / len(points)


def _pairs(rows: Sequence[Row], ours: str) -> list[tuple[Row, Row]]:
    """Ours and `fcfs` at the same point."""
    others = {_point(row): row for row in rows if row["system"] == "fcfs"}
    mine = [row for row in rows if row["system"] == ours and _point(row) in others]
    return [(row, others[_point(row)]) for row in mine]


def _point(row: Row) -> tuple[str, float]:
    return row["setup"], row["rate_per_s"]


def main() -> None:
    """Print the parts of the loss of a record of `bros.py`, and the frontier."""
    record = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    cells, ours = record["cells"], record["ours"]
    rows = [row for row in cells if row["batch"] and row["lengths"] == cells[0]["lengths"]]
    found = losses(rows, ours)
    for each in found:
        print(
            f"{each.setup:12} {each.rate_per_s:5g}/s: {each.in_time:6.1%} in time,"
            f" lost {each.lost:6.1%}: requests served {each.by_served:6.1%},"
            f" all else {each.by_all_else:6.1%}"
        )
    print(
        f"all points: {fmean(each.in_time for each in found):.1%} in time,"
        f" lost {fmean(each.lost for each in found):.1%}:"
        f" requests served {fmean(each.by_served for each in found):.1%},"
        f" all else {fmean(each.by_all_else for each in found):.1%}"
    )
    for in_time in _IN_TIME:
        print(f"least loss with {in_time:.0%} in time: {least_loss(rows, ours, in_time):.1%}")


if __name__ == "__main__":
    main()
