"""The ablations' ratios against numbers by hand, and their cases against what the paper fixes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bench.muxserve.picture import draw
from bench.muxserve.simulated.ablation_cases import (
    EVEN,
    FIXED,
    UNSHARED,
    chatlmsys_points,
    placement_points,
    resource_points,
    wide_points,
)
from bench.muxserve.simulated.cases import SYSTEMS, Duration
from bench.muxserve.simulated.headlines import Headline, Measured, claims_of
from muxcluster.sim.cases.case import run_case
from muxcluster.sim.cases.sweep import Cache
from muxcluster.sim.cases.systems_units import units_for
from muxcluster.sim.report.report import CaseReport

SHORT = Duration(10.0, (0, 1))


@pytest.fixture(scope="module")
def report(data_dir: Path) -> CaseReport:
    (point,) = resource_points(data_dir, (2.1,), Duration(4.0, (0,)))
    return run_case(point.cases["muxserve"][0])


def _measured(report: CaseReport, load: str, system: str, served: Sequence[float]) -> Measured:
    totals = (report.total.model_copy(update={"requests_per_s": each}) for each in served)
    reports = tuple(report.model_copy(update={"total": total}) for total in totals)
    return Measured("placement", load, system, reports)


@pytest.mark.slow
def test_a_headline_is_the_highest_ratio_of_its_loads(report: CaseReport) -> None:
    found = [
        _measured(report, "8 GPUs x 1", "muxserve", (4.0, 8.0)),
        _measured(report, "8 GPUs x 1", "muxserve:placement=memory-greedy", (3.0, 3.0)),
        _measured(report, "16 GPUs x 1", "muxserve", (9.0, 9.0)),
        _measured(report, "16 GPUs x 1", "muxserve:placement=memory-greedy", (1.0, 5.0)),
        _measured(report, "8 GPUs x 2", "muxserve", (5.0, 5.0)),
        _measured(report, "8 GPUs x 2", "muxserve:placement=memory-greedy", (0.0, 0.0)),
    ]
    claims = {claim.name: claim for claim in claims_of(found)}
    assert claims["placement_8_gpus_max"].value == 2.0, "6 over 3; over nothing there is no ratio"
    assert claims["placement_16_gpus_max"].value == 3.0
    assert claims["sm_sharing_max"].value == 0.0, "no such points"
    assert claims["placement_8_gpus_max"].baseline == 1.3


def test_a_headline_of_attainment(report: CaseReport) -> None:
    low, high = (
        replace(_measured(report, "a", system, (1.0,)), experiment="resources")
        for system in ("x", "y")
    )
    total = low.reports[0].total
    poor = total.model_copy(update={"attainment": {**total.attainment, "8": 0.25}})
    low = replace(low, reports=(low.reports[0].model_copy(update={"total": poor}),))
    headline = Headline("h", "resources", "y", "x", None, "attained")
    assert headline.ratios([low, high]) == {"a": pytest.approx(high.attained / 0.25)}


@pytest.mark.slow
def test_half_of_the_models_have_most_of_the_requests(data_dir: Path) -> None:
    points = placement_points(data_dir, (2.0,), SHORT, Cache())
    for point, (gpus, models) in zip(points, ((8, 4), (16, 7)), strict=True):
        for ours, other in zip(*point.cases.values(), strict=True):
            assert ours.load == other.load
            rates = sorted((each.rate for each in ours.problem.demands), reverse=True)
            assert len(rates) == models
            assert sum(node.num_gpus for node in ours.problem.nodes) == gpus
            assert sum(rates[: (models + 1) // 2]) > 0.7 * sum(rates)


def test_an_even_pool_meets_the_same_requests(data_dir: Path) -> None:
    (point,) = resource_points(data_dir, (1.3,), SHORT)
    known, even = point.cases[FIXED][0], point.cases[EVEN + FIXED][0]
    assert list(known.load.arrivals(0, 10.0)) == list(even.load.arrivals(0, 10.0))
    assert known.plan.units[0].kv_blocks == even.plan.units[0].kv_blocks
    assert len({demand.rate for demand in even.problem.demands}) == 1
    assert len({demand.rate for demand in known.problem.demands}) == 4


@pytest.mark.slow
def test_chatlmsys_is_the_releases(data_dir: Path) -> None:
    (point,) = chatlmsys_points(data_dir, (2000,), SHORT, Cache())
    assert list(point.cases) == ["muxserve", "spatial", "spatial-load", "temporal"]
    for cases in point.cases.values():
        demands = cases[0].problem.demands
        assert len(demands) == 16
        assert sum(demand.rate for demand in demands) == pytest.approx(190.05, abs=0.01)
        assert [case.seed for case in cases] == [0, 1]


def test_the_picture_has_a_column_an_alpha(tmp_path: Path) -> None:
    rows = [
        {
            "alpha": alpha,
            "system": system,
            "offered_per_s": rate,
            "requests_per_s": [0.9 * rate, 0.1],
            "within_slo": [0.95, 0.0],
        }
        for alpha in (0.7, 2.1)
        for system in SYSTEMS
        for rate in (10.0, 20.0)
    ]
    draw(rows, tmp_path / "p.svg")
    text = (tmp_path / "p.svg").read_text(encoding="utf-8")
    for word in ("α = 0.7", "α = 2.1", "muxserve (ours)", "served, requests/s"):
        assert word in text
    draw(rows, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text(encoding="utf-8") == text


def test_wide_units_differ_in_how_they_use_their_sms_alone(data_dir: Path) -> None:
    """Of those whose ratio is what sharing adds: the same pool, the same quotas."""
    (point, *_) = wide_points(data_dir, (0.7,), (1.0,), SHORT)
    shared, unshared = (
        units_for(case.system, case.plan, case.problem)[0]
        for case in (point.cases[system][0] for system in ("muxserve", UNSHARED))
    )
    assert len(shared.spec.workers) == 2 > len(unshared.spec.workers)
    same = replace(unshared.spec, workers=shared.spec.workers, partition=shared.spec.partition)
    assert same == shared.spec
