"""Errors, orders, intervals and fair shares of the MuxServe benches, against numbers by hand."""

from pathlib import Path

import pytest
from pydantic import BaseModel

from bench.muxserve import thirty_models
from bench.muxserve.artifact.agreement import Row, by_point, pairs_right, ranked, row_of
from bench.muxserve.artifact.published import Mesh, Run, Served
from bench.muxserve.artifact.replay import Replayed
from bench.muxserve.artifact.store import Store
from bench.muxserve.simulated.cases import Duration, ablations, output_tokens, problems, scaled
from bench.muxserve.simulated.judging import (
    interval,
    least_fair_share,
    rate_weighted,
    share_within_slo,
)
from muxcluster.config import planner_input
from muxcluster.config.load import load_config
from muxcluster.sim.cases.case import run_case
from muxcluster.sim.cases.sweep import Cache
from muxcluster.sim.report.report import CaseReport


def _run(system: str, **measured: float) -> Run:
    models = tuple(
        Served(name, "llama-7b", 1.0 + index, 10, 10, 10, 1.0, 0.9, value)
        for index, (name, value) in enumerate(measured.items())
    )
    return Run("p", system, (Mesh(1, 0.5, models),))


def _replayed(**per_s: float) -> Replayed:
    return Replayed(per_s=per_s, latency_s={}, ttft_s={}, num_jobs=1)


def test_row_is_the_mean_over_seeds() -> None:
    row = row_of(_run("spatial", a=4.0, b=1.0), [_replayed(a=3.0, b=1.0), _replayed(a=5.0, b=2.0)])
    assert row.totals == (5.0, 5.5)
    assert row.error == pytest.approx(0.1)
    assert row.model_errors == pytest.approx([0.0, 0.5])
    # rates 1 and 2
    assert row.weighted == pytest.approx(((4 + 2) / 3, (4 + 3) / 3))


def test_order_and_pairs() -> None:
    rows = [
        Row(_run("muxserve", a=10.0), {"a": 10.0}, {"a": 12.0}),
        Row(_run("spatial", a=8.0), {"a": 8.0}, {"a": 7.0}),
        Row(_run("temporal", a=7.9), {"a": 7.9}, {"a": 7.5}),
    ]
    systems = by_point(rows)["p"]
    assert ranked(systems) == (
        ("muxserve", "spatial", "temporal"),
        ("muxserve", "temporal", "spatial"),
    )
    pairs = {(one, other): (gap, right) for one, other, gap, right in pairs_right(systems)}
    assert pairs["muxserve", "spatial"] == (pytest.approx(0.25), True)
    assert pairs["spatial", "temporal"] == (pytest.approx(8 / 7.9 - 1), False)


def test_interval_of_one_and_of_several() -> None:
    assert interval([3.0]) == (3.0, 0.0)
    mean, half = interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(1.96 / 3**0.5)


def test_store_keeps_by_case_and_forgets_what_is_broken(tmp_path: Path) -> None:
    class Value(BaseModel):
        number: int

    store = Store(tmp_path / "new")
    run = _run("spatial", a=1.0)
    assert store.read(Value, run, 0) is None
    store.write(Value(number=7), run, 0)
    assert store.read(Value, run, 0) == Value(number=7)
    assert store.read(Value, run, 1) is None
    (file,) = (tmp_path / "new").iterdir()
    file.write_text("{", encoding="utf-8")
    assert store.read(Value, run, 0) is None
    assert Store(None).read(Value, run, 0) is None


@pytest.fixture(scope="module")
def starved(data_dir: Path) -> CaseReport:
    """65B and 30B on one mesh at four times the paper's rates, for a while."""
    asked = ablations(data_dir)[1]
    cases = asked.cases(Duration(30.0, (0,)))
    assert set(cases) == {"fcfs", "round-robin", "muxserve"}
    return run_case(cases["muxserve"][0])


@pytest.mark.slow
def test_figures_of_a_simulated_case(starved: CaseReport) -> None:
    rates = {"llama-65b": 1.0, "llama-30b": 8.0}
    served = {name: group.requests_per_s for name, group in starved.models.items()}
    by_hand = (served["llama-65b"] + 8 * served["llama-30b"]) / 9
    assert rate_weighted(starved, rates) == pytest.approx(by_hand)
    assert 0.0 <= share_within_slo(starved) <= 1.0


def test_fair_share_wants_enough_requests(starved: CaseReport, data_dir: Path) -> None:
    outputs = output_tokens(ablations(data_dir)[1].problem)
    assert outputs["llama-30b"] == pytest.approx(126, rel=0.02)
    assert 230 < outputs["llama-65b"] < 251
    groups = starved.models
    assert groups["llama-65b"].num_requests < 200 < groups["llama-30b"].num_requests
    came = {name: group.tokens_per_s for name, group in groups.items()}
    asked = {name: group.offered_per_s * outputs[name] for name, group in groups.items()}
    overall = sum(came.values()) / sum(asked.values())
    expected = came["llama-30b"] / asked["llama-30b"] / overall
    assert least_fair_share([starved], outputs) == pytest.approx(expected, abs=1e-4)


def test_rates_follow_the_power_law(data_dir: Path) -> None:
    for alpha, problem in problems(data_dir).items():
        rates = [demand.rate for demand in scaled(problem, 0.5).demands]
        assert rates == pytest.approx([20.0 * (i + 1) ** -alpha for i in range(19)], rel=0.01)


def test_thirty_models_on_eight_gpus() -> None:
    """One model a GPU places as many models as there are GPUs, and misses the others' requests."""
    config = load_config(thirty_models.CONFIG)
    base = planner_input.problem(config, planner_input.nodes_of(config))
    ours, spatial, temporal = thirty_models.points(base, [0.5])
    assert [len(each.served.demands) for each in (ours, spatial, temporal)] == [30, 8, 30]
    rates = sorted((each.rate for each in spatial.offered.demands), reverse=True)
    assert sorted((each.rate for each in spatial.served.demands), reverse=True) == rates[:8]
    assert rates[0] == pytest.approx(0.5 * max(each.rate for each in base.demands))
    small = thirty_models.Point("one model a GPU", 0.5, ours.offered, spatial.served)
    report = run_case(small.case(1.0, 0, Cache(None)))
    row = thirty_models.row_of(small, [report])
    within = report.total.attainment["8"]
    assert within is not None
    assert row["in_time"] == pytest.approx(within * sum(rates[:8]) / sum(rates), abs=1e-4)


def test_claims_of_thirty_models_are_against_the_better_of_the_others() -> None:
    shares = {"ours": (0.9, 0.5), "one model a GPU": (0.6, 0.4), "time sharing": (0.95, 0.2)}
    rows = [
        {"system": name, "offered_per_s": offered, "in_time": found[at]}
        for at, offered in enumerate((10.0, 20.0))
        for name, found in shares.items()
    ]
    claims = {each.name: each for each in thirty_models.claims_of(rows)}
    assert claims["in_time_at_lowest_rate"].baseline == 0.95
    assert claims["in_time_at_highest_rate"].value == 0.5
    assert claims["in_time_at_highest_rate"].baseline == 0.4
    assert claims["in_time_per_s_over_one_model_a_gpu"].value == pytest.approx(10 / 8)
    assert claims["in_time_per_s_over_time_sharing"].value == pytest.approx(10 / 9.5)
