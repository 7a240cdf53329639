"""The record of `bench/engine_fidelity.py`: figures of both sides of a case, errors, claims."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.harness import Claim
from muxcluster.core.served import JobRecord
from muxcluster.sim.core.timeline import JobSpan
from muxcluster.workload.metrics.records import CLASSES, Records
from muxcluster.workload.metrics.window import tpot_s, ttft_s

_GOALS = {"throughput": ("requests_per_s", 0.10), "ttft_p50": ("ttft_p50_ms", 0.15)}
_GOALS |= {"ttft_p95": ("ttft_p95_ms", 0.25)}


class _JobKind(NamedTuple):
    """Jobs of one phase: how many, and the means of their rows, tokens and milliseconds."""

    count: int
    rows: float
    tokens: float
    ms: float


@dataclass(frozen=True, slots=True)
class Side:
    """The requests that count of a case, as measured or as simulated."""

    ttft_s: NDArray[np.float64]  # [requests], in the order of arrival
    figures: Mapping[str, float]
    jobs: Mapping[str, _JobKind]  # by phase


class Part(NamedTuple):
    """The requests and jobs of one stretch; seconds from its beginning, all have ended."""

    records: Records
    jobs: Sequence[JobRecord]


def side_of(parts: Sequence[Part]) -> Side:
    """Take the figures of some stretches together."""
    rows = np.concatenate(
        [np.sort(part.records.rows, order=("arrival_s", "prompt_tokens")) for part in parts]
    )
    records = Records(parts[0].records.models, rows)
    first_s = ttft_s(records)
    taken_s = sum(float(part.records.rows["last_token_s"].max()) for part in parts)
    figures = {
        "requests_per_s": len(rows) / taken_s,
        "output_tokens_per_s": float(rows["output_tokens"].sum()) / taken_s,
        **_ms("ttft", first_s),
        **_ms("tpot", tpot_s(records)),
    }
    for service_class in CLASSES:
        mine = first_s[rows["service_class"] == CLASSES.index(service_class)]
        if len(mine):
            figures |= _ms(f"{service_class}_ttft", mine)
    counted = _kinds([job for part in parts for job in part.jobs])
    return Side(first_s, {name: round(value, 3) for name, value in figures.items()}, counted)


def parts_of(records: Records, jobs: Sequence[JobRecord], begins_s: Sequence[float]) -> list[Part]:
    """Return the stretches that begin at `begins_s`, each up to the next; what is before is not."""
    parts = []
    for begin_s, end_s in zip(begins_s, [*begins_s[1:], np.inf], strict=True):
        arrival_s = records.rows["arrival_s"]
        mine = records.where((arrival_s >= begin_s) & (arrival_s < end_s))
        for name in ("arrival_s", "first_token_s", "last_token_s"):
            mine.rows[name] -= begin_s
        own = [
            replace(job, start_s=job.start_s - begin_s, end_s=job.end_s - begin_s)
            for job in jobs
            if begin_s <= job.start_s < end_s
        ]
        parts.append(Part(mine, own))
    return parts


def simulated_jobs(spans: Sequence[JobSpan]) -> list[JobRecord]:
    """Convert the simulator's jobs to the engine's form; steps in one entry count apart."""
    found = []
    for span in spans:
        step_s = (span.end_s - span.start_s) / span.num_steps
        times = (span.start_s, span.start_s + step_s)
        tokens = span.num_tokens // span.num_steps
        job = JobRecord(0, span.model, span.phase, 0, span.share, *times, span.num_rows, tokens)
        found += [job] * span.num_steps
    return found


def row_of(measured: Side, simulated: Side) -> dict[str, Any]:
    """Return what the record says of a case."""
    return {
        "errors": {
            name: round(simulated.figures[figure] / measured.figures[figure] - 1, 4)
            for name, (figure, _) in _GOALS.items()
        },
        "measured": measured.figures,
        "simulated": simulated.figures,
        "measured_jobs": {phase: kind._asdict() for phase, kind in measured.jobs.items()},
        "simulated_jobs": {phase: kind._asdict() for phase, kind in simulated.jobs.items()},
    }


def samples_of(case: str, measured: Side, simulated: Side) -> dict[str, list[float]]:
    """Return every TTFT in milliseconds, by side, in the order of arrival."""
    return {
        f"ttft_ms {name} {case}": np.round(1e3 * side.ttft_s, 1).tolist()
        for name, side in (("measured", measured), ("simulated", simulated))
    }


def claims_of(rows: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Medians over the cases, each against its goal."""
    return [
        Claim(
            f"{name}_median_abs_error",
            round(median(abs(row["errors"][name]) for row in rows), 4),
            "of measured",
            goal,
        )
        for name, (_, goal) in _GOALS.items()
    ]


def _ms(name: str, seconds: NDArray[np.float64]) -> dict[str, float]:
    quantiles = {"p50": 0.5, "p95": 0.95}
    found = {f"{name}_{key}_ms": np.nanquantile(seconds, part) for key, part in quantiles.items()}
    return {key: 1e3 * float(value) for key, value in found.items()}


def _kinds(jobs: Sequence[JobRecord]) -> dict[str, _JobKind]:
    found = {}
    for phase in sorted({job.phase for job in jobs}):
        mine = [job for job in jobs if job.phase == phase]
        columns = (
            [job.num_rows for job in mine],
            [job.num_tokens for job in mine],
            [1e3 * (job.end_s - job.start_s) for job in mine],
        )
        found[phase] = _JobKind(len(mine), *(round(float(np.mean(each)), 2) for each in columns))
    return found
