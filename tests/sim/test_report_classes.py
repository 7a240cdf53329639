"""Figures by class of service against sums over plain tuples; waves in a whole case."""

import random
from dataclasses import replace

import numpy as np
import pytest

from muxcluster.core.request import ServiceClass
from muxcluster.core.served import ModelStats, UnitStats
from muxcluster.core.unitspec import SchedulerSpec
from muxcluster.placement.execution import UnitPolicy
from muxcluster.placement.hardware import GPUS
from muxcluster.placement.problem import Demand, Node, Problem
from muxcluster.placement.shapes.known import SHAPES
from muxcluster.sim.cases.case import Case, run_case
from muxcluster.sim.cases.systems import system_named
from muxcluster.sim.cases.systems_units import plan_of
from muxcluster.sim.demand.loads import Synthetic
from muxcluster.sim.demand.waves import Waves
from muxcluster.sim.report.classes import classes_report
from muxcluster.sim.report.report import CaseReport
from muxcluster.workload.generate import Source
from muxcluster.workload.lengths import Independent
from muxcluster.workload.marginals import Constant
from muxcluster.workload.metrics.records import Ending, Record, RecordLog
from muxcluster.workload.metrics.window import Window
from muxcluster.workload.processes import Poisson

WINDOW = Window(0.0, 50.0)


def demand(name: str, **targets: float) -> Demand:
    return Demand(name, SHAPES["llama-7b"], 4.0, 200.0, 100.0, 2048, 64, **targets)


DEMANDS = {"x": demand("x", ttft_s=1.0, tpot_s=0.1), "y": demand("y")}


def some_records(seed: int) -> list[Record]:
    """Some too slow for a target, some that never end, some after the window."""
    draw = random.Random(seed)
    found = []
    for _ in range(300):
        start, output = draw.uniform(0, 60), draw.choice((1, 1, 5, 50, 300))
        first = start + draw.uniform(0, 2)
        last = first if output == 1 else first + (output - 1) * draw.uniform(0.05, 0.15)
        ending = draw.choice((*[Ending.FINISHED] * 8, Ending.UNFINISHED))
        kind = draw.choice(tuple(ServiceClass))
        found.append(Record(draw.choice("xy"), start, first, last, 100, output, kind, ending))
    return found


def is_within(record: Record, ttft: bool, tpot: bool) -> bool:
    """Spelled out for one request."""
    if record.ending is not Ending.FINISHED:
        return False
    if record.model == "y":
        return True
    is_early = record.first_token_s - record.arrival_s <= 1.0
    gap = record.output_tokens - 1
    is_fluent = gap == 0 or (record.last_token_s - record.first_token_s) / gap <= 0.1
    return (is_early or not ttft) and (is_fluent or not tpot)


def test_attainment_and_latency_are_those_of_interactive_requests_that_arrived() -> None:
    log = RecordLog(("x", "y"))
    records = some_records(0)
    for record in records:
        log.add(record)
    report = classes_report(log.records(), WINDOW, DEMANDS, []).interactive
    mine = [r for r in records if r.service_class is ServiceClass.INTERACTIVE and r.arrival_s < 50]
    done = [r for r in mine if r.ending is Ending.FINISHED]
    assert report.num_requests == len(mine) > 50
    assert report.offered_per_s == len(mine) / 50
    assert report.finished_share == pytest.approx(len(done) / len(mine))
    for share, ttft, tpot in (
        (report.ttft_attainment, True, False),
        (report.tpot_attainment, False, True),
        (report.attainment, True, True),
    ):
        wanted = np.mean([is_within(r, ttft, tpot) for r in mine])
        assert share == pytest.approx(wanted)
        assert 0.1 < share < 0.9
    normalised = sorted((r.last_token_s - r.arrival_s) / r.output_tokens for r in done)
    assert report.normalised.mean == pytest.approx(np.mean(normalised))
    assert report.normalised.p99 == pytest.approx(np.quantile(normalised, 0.99))
    assert report.ttft.p50 == pytest.approx(
        np.median([r.first_token_s - r.arrival_s for r in done])
    )


def test_batch_throughput_is_of_the_window() -> None:
    """Ten requests before its end, one whose prompt alone was computed, one after it."""
    log = RecordLog(("x", "y"))
    for index in range(10):
        log.add(Record("x", 0.0, 1.0 + index, 2.0 + index, 700, 11, ServiceClass.BATCH))
    log.add(Record("x", 40.0, 49.5, 50.5, 500, 2, ServiceClass.BATCH))
    log.add(Record("y", 40.0, 51.0, 52.0, 500, 2, ServiceClass.BATCH))
    log.add(Record("y", 1.0, 2.0, 3.0, 1000, 1000))
    report = classes_report(log.records(), WINDOW, DEMANDS, []).batch
    assert (report.num_requests, report.num_waves) == (12, 2)
    assert report.requests_per_s == 10 / 50
    assert report.output_tokens_per_s == pytest.approx((10 * 11 + 1) / 50)
    assert report.tokens_per_s == pytest.approx((10 * 711 + 501) / 50)
    assert report.latency.count == 12


def test_nobody_of_a_class_leaves_its_figures_empty() -> None:
    report = classes_report(RecordLog(("x", "y")).records(), WINDOW, DEMANDS, [])
    assert report.interactive.attainment is None
    assert report.interactive.normalised.count == 0
    assert report.batch.tokens_per_s == 0.0


def test_counters_are_summed_over_units_and_models() -> None:
    first, second = (
        ModelStats(name, num_lent_columns=n, num_saved_slots=2 * n, num_restored_slots=3 * n)
        for name, n in (("x", 1), ("y", 10))
    )
    last = ModelStats("x", num_recomputed_tokens=7, num_preemptions=5)
    stats = [UnitStats("u", 0.0, 9, 9, (first, second)), UnitStats("v", 0.0, 9, 9, (last,))]
    report = classes_report(RecordLog(("x", "y")).records(), WINDOW, DEMANDS, stats).sharing
    assert list(report.model_dump().values()) == [11, 22, 33, 7, 5]


def case(packing: str, rate: float = 4.0) -> Case:
    asked = Problem(
        (replace(demand("x", ttft_s=0.5, tpot_s=0.1), rate=rate),),
        (Node("a", 1, GPUS["A100-80GB"]),),
        policy=UnitPolicy(SchedulerSpec(packing=packing)),
    )
    system = system_named("temporal")
    source = Source("x", Poisson(rate), Independent(Constant(200), Constant(100)))
    return Case(
        system,
        plan_of(system.method, asked),
        asked,
        Synthetic((source,)),
        duration_s=40.0,
        waves=(Waves("x", 60, Independent(Constant(700), Constant(60)), 40.0),),
    )


def test_a_case_with_waves_reports_both_classes() -> None:
    """Priority serves interactive requests better and batch ones worse; nobody is left over."""
    fcfs, priority = (run_case(case(packing)) for packing in ("fcfs", "priority"))
    assert CaseReport.model_validate_json(fcfs.model_dump_json()) == fcfs
    for report in (fcfs, priority):
        assert report.classes is not None
        assert report.classes.interactive.num_requests > 100
        assert report.classes.interactive.finished_share == 1.0
        assert report.classes.batch.num_waves > 2
    assert priority.classes.interactive.ttft_attainment > fcfs.classes.interactive.ttft_attainment
    assert priority.classes.interactive.normalised.mean < fcfs.classes.interactive.normalised.mean
    assert priority.classes.batch.tokens_per_s < fcfs.classes.batch.tokens_per_s


def test_classes_are_told_apart_where_waves_are_given_be_it_none() -> None:
    calm = case("fcfs", rate=0.5)
    assert run_case(replace(calm, waves=None)).classes is None
    report = run_case(replace(calm, waves=())).classes
    assert report is not None
    assert report.interactive.num_requests > 5
    assert report.batch.num_waves == 0
