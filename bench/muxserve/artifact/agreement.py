"""Agreement of replayed with measured throughputs: errors, and the order of the systems."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from bench.muxserve.artifact.published import Run
from bench.muxserve.artifact.replay import Replayed


@dataclass(frozen=True, slots=True)
class Row:
    """One run."""

    run: Run
    # measured, simulated: requests/s, by model, the latter the mean over the seeds
    measured: Mapping[str, float]
    simulated: Mapping[str, float]

    @property
    def totals(self) -> tuple[float, float]:
        """Sums over the models: measured, simulated."""
        return sum(self.measured.values()), sum(self.simulated.values())

    @property
    def error(self) -> float:
        """Of the simulated total, relative to the measured one."""
        measured, simulated = self.totals
        return simulated / measured - 1.0

    @property
    def model_errors(self) -> list[float]:
        """Of each model, relative to its measured throughput."""
        return [self.simulated[name] / value - 1.0 for name, value in self.measured.items()]

    @property
    def weighted(self) -> tuple[float, float]:
        """Rate-weighted mean throughput (what MuxServe plots): measured, simulated."""
        rates = {model.name: model.rate_per_s for model in self.run.models}
        total = sum(rates.values())
        measured, simulated = (
            sum(rates[name] * value for name, value in each.items()) / total
            for each in (self.measured, self.simulated)
        )
        return measured, simulated


def row_of(run: Run, replays: Sequence[Replayed]) -> Row:
    """Of one run replayed with several seeds."""
    measured = {model.name: model.measured_per_s for model in run.models}
    simulated = {name: fmean(each.per_s[name] for each in replays) for name in measured}
    return Row(run, measured, simulated)


def by_point(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """Point -> system -> row."""
    points: dict[str, dict[str, Row]] = {}
    for row in rows:
        points.setdefault(row.run.point, {})[row.run.system] = row
    return points


def ranked(rows: Mapping[str, Row]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The systems of a point, highest total first: as measured, as simulated."""
    measured = sorted(rows, key=lambda name: -rows[name].totals[0])
    simulated = sorted(rows, key=lambda name: -rows[name].totals[1])
    return tuple(measured), tuple(simulated)


def pairs_right(rows: Mapping[str, Row]) -> list[tuple[str, str, float, bool]]:
    """(system, system, how far their measured totals are apart, ordered right) of each pair."""
    found = []
    for one, other in combinations(rows, 2):
        measured = rows[one].totals[0] / rows[other].totals[0] - 1.0
        simulated = rows[one].totals[1] / rows[other].totals[1] - 1.0
        found.append((one, other, abs(measured), (measured > 0) == (simulated > 0)))
    return found
