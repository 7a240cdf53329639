"""Results of interactive and of batch requests, apart."""

from collections.abc import Mapping, Sequence

import numpy as np

from muxcluster.core.request import ServiceClass
from muxcluster.core.served import UnitStats
from muxcluster.placement.problem import Demand
from muxcluster.sim.report.judge import number, spread_report
from muxcluster.sim.report.report import (
    BatchReport,
    ClassesReport,
    InteractiveReport,
    SharingReport,
)
from muxcluster.workload.metrics import window as metrics
from muxcluster.workload.metrics.records import Records
from muxcluster.workload.metrics.slo import attainment_of_targets
from muxcluster.workload.metrics.window import Floats, Window


def classes_report(
    records: Records, window: Window, demands: Mapping[str, Demand], stats: Sequence[UnitStats]
) -> ClassesReport:
    """Return both classes over one window. Raises KeyError for a model without a demand."""
    return ClassesReport(
        interactive=_interactive(records.of_class(ServiceClass.INTERACTIVE), window, demands),
        batch=_batch(records.of_class(ServiceClass.BATCH), window),
        sharing=_sharing(stats),
    )


def _interactive(
    records: Records, window: Window, demands: Mapping[str, Demand]
) -> InteractiveReport:
    arrived = metrics.arrived(records, window)
    done = arrived.where(arrived.is_finished)
    ttft, tpot = _targets(arrived, demands)
    none = np.full(len(arrived), np.inf)
    through = metrics.throughput(records, window)
    return InteractiveReport(
        num_requests=len(arrived),
        offered_per_s=len(arrived) / window.duration_s,
        requests_per_s=through.requests_per_s,
        output_tokens_per_s=through.output_tokens_per_s,
        finished_share=number(len(done) / len(arrived)) if len(arrived) else None,
        ttft=spread_report(metrics.ttft_s(done)),
        tpot=spread_report(metrics.tpot_s(done)),
        normalised=spread_report(metrics.normalised_s(done)),
        ttft_attainment=number(attainment_of_targets(arrived, ttft, none)),
        tpot_attainment=number(attainment_of_targets(arrived, none, tpot)),
        attainment=number(attainment_of_targets(arrived, ttft, tpot)),
    )


def _batch(records: Records, window: Window) -> BatchReport:
    through = metrics.throughput(records, window)
    arrived = metrics.arrived(records, window)
    return BatchReport(
        num_requests=len(arrived),
        num_waves=len(np.unique(arrived.rows["arrival_s"])),
        requests_per_s=through.requests_per_s,
        tokens_per_s=through.prompt_tokens_per_s + through.output_tokens_per_s,
        output_tokens_per_s=through.output_tokens_per_s,
        latency=spread_report(metrics.latency_s(arrived.where(arrived.is_finished))),
    )


def _sharing(stats: Sequence[UnitStats]) -> SharingReport:
    models = [model for unit in stats for model in unit.models]
    return SharingReport(
        num_lent_columns=sum(model.num_lent_columns for model in models),
        num_saved_slots=sum(model.num_saved_slots for model in models),
        num_restored_slots=sum(model.num_restored_slots for model in models),
        num_recomputed_tokens=sum(model.num_recomputed_tokens for model in models),
        num_preemptions=sum(model.num_preemptions for model in models),
    )


def _targets(arrived: Records, demands: Mapping[str, Demand]) -> tuple[Floats, Floats]:
    """Return [n] TTFT and TPOT targets in the order of the records, infinite for no target."""
    found = np.full((2, len(arrived.models)), np.inf)
    for index, name in enumerate(arrived.models):
        demand = demands[name]
        if demand.ttft_s is not None and demand.tpot_s is not None:
            found[:, index] = demand.ttft_s, demand.tpot_s
    ttft, tpot = found[:, arrived.rows["model"]]
    return ttft, tpot
