"""Reports: base latencies against a sum by hand, figures that add up, JSON there and back."""

import numpy as np
import pytest

from muxcluster.placement.cost import Roofline
from muxcluster.placement.hardware import GPUS
from muxcluster.placement.problem import Demand, Node, Problem
from muxcluster.placement.shapes.known import SHAPES
from muxcluster.sim.cases.case import Case, run_case
from muxcluster.sim.cases.systems import system_named
from muxcluster.sim.cases.systems_units import plan_of
from muxcluster.sim.demand.loads import Synthetic
from muxcluster.sim.report.judge import fairness_report, group_report, worst_model
from muxcluster.sim.report.report import CaseReport
from muxcluster.sim.report.slo import base_latencies, base_s
from muxcluster.workload.generate import Source
from muxcluster.workload.lengths import Independent
from muxcluster.workload.marginals import Constant
from muxcluster.workload.metrics.records import Ending, Record, RecordLog
from muxcluster.workload.metrics.window import Window
from muxcluster.workload.processes import Deterministic

GPU = GPUS["A100-80GB"]
NODES = (Node("a", 8, GPU),)


def demand(name: str, shape: str, rate: float = 1.0, **more: float) -> Demand:
    return Demand(name, SHAPES[shape], rate, 200.0, 100.0, 2048, 64, **more)


PROBLEM = Problem(
    (demand("x", "llama-7b", 4.0, ttft_s=0.5, tpot_s=0.1), demand("y", "llama-13b")), NODES
)


def test_a_base_latency_is_a_prefill_and_every_decode_step_alone() -> None:
    log = RecordLog(("x", "y"))
    log.add(Record("y", 0.0, 1.0, 2.0, 300, 200))
    log.add(Record("x", 0.0, 1.0, 1.0, 17, 1))
    cost = Roofline(GPU)
    large, small = SHAPES["llama-13b"], SHAPES["llama-7b"]
    steps = sum(cost.decode_s(large, 1, 1.0, 1, 300 + index) for index in range(1, 200))
    wanted = [
        cost.prefill_s(large, 1, 1.0, 1, 300) + steps,
        cost.prefill_s(small, 1, 1.0, 1, 17),
    ]
    assert base_s(log.records(), base_latencies(PROBLEM)) == pytest.approx(wanted, rel=0.005)


@pytest.mark.parametrize(
    ("shape", "tp"), [("llama-7b", 1), ("llama-13b", 1), ("llama-30b", 4), ("llama-65b", 8)]
)
def test_base_meshes_are_those_of_the_published_baseline(shape: str, tp: int) -> None:
    asked = Problem((demand("m", shape),), NODES)
    prefill = np.interp(512, *_curve(base_latencies(asked)["m"]))
    assert prefill == pytest.approx(Roofline(GPU).prefill_s(SHAPES[shape], tp, 1.0, 1, 512), 0.02)


def _curve(base) -> tuple[np.ndarray, np.ndarray]:
    return base.lengths, base.prefill_s


def test_a_group_counts_refused_late_and_finished_requests_apart() -> None:
    log = RecordLog(("x", "y"))
    log.add(Record("x", 1.0, 1.1, 3.0, 100, 20))
    log.add(Record("x", 2.0, 2.6, 12.0, 100, 20))
    log.add(Record("x", 3.0, None, None, 100, 0, ending=Ending.REJECTED))
    log.add(Record("y", 4.0, 4.1, 20.0, 100, 7, ending=Ending.UNFINISHED))
    bases = base_latencies(PROBLEM)
    demands = {each.name: each for each in PROBLEM.demands}
    found = group_report(log.records(), Window(0.0, 10.0), bases, demands, (1.0, 1000.0))
    assert (found.num_requests, found.num_refused, found.latency.count) == (4, 1, 2)
    assert found.offered_per_s == pytest.approx(0.4)
    assert found.requests_per_s == pytest.approx(0.1), "one ended inside the window"
    assert found.served_share == pytest.approx(0.25)
    assert found.finished_share == pytest.approx(0.5)
    assert found.attainment == {"1": 0.0, "1000": 0.5}
    assert found.target_attainment == pytest.approx(1 / 3), (
        "TTFT of the second is 0.6 s, y has none"
    )
    assert found.latency.quantiles[0] == pytest.approx(2.0)
    assert found.latency.quantiles[-1] == pytest.approx(10.0)


def test_fairness_without_use_and_with_a_model_that_nobody_asks_for() -> None:
    assert fairness_report({"x": 0.0}, {"x": 1.0}) is None
    found = fairness_report({"x": 2.0, "y": 0.0, "z": 0.0}, {"x": 1.0, "y": 1.0, "z": 0.0})
    assert found is not None
    assert (found.least_model, found.least_share, found.max_over_min) == ("y", 0.0, None)


def small_case(name: str = "muxserve", rate: float = 2.0) -> Case:
    lengths = Independent(Constant(200), Constant(50))
    sources = tuple(Source(each.name, Deterministic(rate), lengths) for each in PROBLEM.demands)
    system = system_named(name)
    return Case(system, plan_of(system.method, PROBLEM), PROBLEM, Synthetic(sources), duration_s=20)


def test_a_light_case_serves_everyone_and_survives_json() -> None:
    report = run_case(small_case())
    assert CaseReport.model_validate_json(report.model_dump_json()) == report
    assert report.total.num_requests == 80
    assert report.total.num_requests == sum(g.num_requests for g in report.models.values())
    assert report.total.finished_share == 1.0
    assert report.total.attainment["50"] == 1.0
    assert report.total.requests_per_s <= report.total.offered_per_s
    assert report.worst_model in ("x", "y")
    assert worst_model({}, 8.0) is None


@pytest.mark.slow
def test_use_is_between_nothing_and_all_and_is_made_of_the_models_parts() -> None:
    spans = []
    use = run_case(small_case(), spans.append).use
    assert 0 < use.sm < 1
    assert len(use.times_s) == len(use.kv_over_time["x"]) == 60
    assert use.kv == pytest.approx(sum(np.mean(part) for part in use.kv_over_time.values()))
    assert use.kv_fairness is not None
    gpus = {unit.id: unit.tp for unit in small_case().plan.units}
    busy = sum(
        gpus[span.unit_id] * span.share * (min(span.end_s, 20.0) - span.start_s)
        for span in spans
        if span.start_s < 20.0
    )
    assert use.sm == pytest.approx(busy / 20.0 / sum(gpus.values()), rel=0.02)
