"""The paper's ratios between systems, and the simulated ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from bench.harness import Claim
from bench.muxserve.simulated.ablation_cases import EVEN, FIXED, GREEDY, NEITHER, UNSHARED
from bench.muxserve.simulated.judging import (
    interval,
    rate_weighted,
    requests_per_s,
    share_within_slo,
)
from muxcluster.sim.report.report import CaseReport


@dataclass(frozen=True, slots=True)
class Measured:
    """A system at a point: a report a seed."""

    experiment: str
    load: str
    system: str
    reports: tuple[CaseReport, ...]

    @property
    def served(self) -> float:
        """Requests/s, mean of the seeds."""
        return fmean(map(requests_per_s, self.reports))

    @property
    def weighted(self) -> float:
        """Requests/s as the paper counts them: mean over the models, weighted by rate."""
        return fmean(map(_rate_weighted, self.reports))

    @property
    def attained(self) -> float:
        """Share of the requests within the SLO, mean of the seeds."""
        return fmean(map(share_within_slo, self.reports))

    def row(self) -> dict[str, Any]:
        """For the record."""
        models = self.reports[0].models
        return {
            "experiment": self.experiment,
            "load": self.load,
            "system": self.system,
            "virtual_s": self.reports[0].duration_s,
            "offered_per_s": round(fmean(each.total.offered_per_s for each in self.reports), 2),
            "requests_per_s": _rounded(interval(map(requests_per_s, self.reports)), 2),
            "rate_weighted_per_s": round(self.weighted, 2),
            "tokens_per_s": round(fmean(each.total.tokens_per_s for each in self.reports), 1),
            "within_slo": _rounded(interval(map(share_within_slo, self.reports)), 4),
            "sm_use": round(fmean(each.use.sm for each in self.reports), 3),
            "kv_use": round(fmean(each.use.kv for each in self.reports), 3),
            "served_share": {
                name: round(fmean(each.models[name].served_share or 0 for each in self.reports), 3)
                for name in models
            },
            "units": self.reports[0].units,
        }


def _rate_weighted(report: CaseReport) -> float:
    return rate_weighted(report, {name: each.offered_per_s for name, each in report.models.items()})


def _rounded(values: Sequence[float], digits: int) -> list[float]:
    return [round(value, digits) for value in values]


@dataclass(frozen=True, slots=True)
class Headline:
    """One of the paper's ratios."""

    name: str
    experiment: str
    ours: str
    other: str
    paper: float | None
    figure: str = "served"  # "served", "weighted" or "attained"
    load: str = ""  # how the loads begin that it is taken over

    def ratios(self, found: Sequence[Measured]) -> dict[str, float]:
        """By load, those where the other served anything."""
        figures = {
            (each.load, each.system): float(getattr(each, self.figure))
            for each in found
            if each.experiment == self.experiment and each.load.startswith(self.load)
        }
        return {
            load: value / figures[load, self.other]
            for (load, system), value in figures.items()
            if system == self.ours and figures[load, self.other] > 0
        }


HEADLINES = (
    Headline("placement_8_gpus_max", "placement", "muxserve", GREEDY, 1.3, load="8 GPUs"),
    Headline("placement_16_gpus_max", "placement", "muxserve", GREEDY, 1.3, load="16 GPUs"),
    Headline("sm_sharing_max", "resources", FIXED, NEITHER, 1.7),
    Headline("wide_sm_sharing_max", "wide", "muxserve", UNSHARED, None),
    Headline("wide_over_mixed_max", "wide", "muxserve", "mixed", None),
    Headline("unified_kv_max", "resources", "muxserve", FIXED, 1.2),
    Headline("unified_kv_slo_max", "resources", "muxserve", FIXED, 3.6, "attained"),
    Headline(
        "unified_kv_unknown_popularity_max", "resources", EVEN + "muxserve", EVEN + FIXED, 1.2
    ),
    Headline(
        "unified_kv_unknown_popularity_slo_max",
        "resources",
        EVEN + "muxserve",
        EVEN + FIXED,
        3.6,
        "attained",
    ),
    Headline("chatlmsys_over_spatial_max", "chatlmsys", "muxserve", "spatial", 1.38),
    Headline("chatlmsys_over_temporal_max", "chatlmsys", "muxserve", "temporal", 1.46),
    Headline(
        "chatlmsys_weighted_over_spatial_max", "chatlmsys", "muxserve", "spatial", 1.38, "weighted"
    ),
    Headline(
        "chatlmsys_weighted_over_temporal_max",
        "chatlmsys",
        "muxserve",
        "temporal",
        1.46,
        "weighted",
    ),
    Headline("chatlmsys_over_spatial_by_load_max", "chatlmsys", "muxserve", "spatial-load", None),
)


def claims_of(found: Sequence[Measured]) -> list[Claim]:
    """The highest ratio of each headline; its baseline is the paper's."""
    return [
        Claim(each.name, max(each.ratios(found).values(), default=0.0), "times", each.paper)
        for each in HEADLINES
    ]
