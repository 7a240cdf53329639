"""Parts of a run of `bench/hybrid/engine.py`, and their figures."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.harness import Claim, percentiles
from bench.hybrid.on_engine.load import INTERACTIVE, Answer, Draws, Traffic
from muxcluster.core.request import ServiceClass, Slo
from muxcluster.core.served import JobRecord
from muxcluster.engine.unit.unit import Unit

ALONE, BATCH_ALONE, OURS = "alone", "batch alone", "hybrid"
_STEP_MS = 20.0
FACTOR = 1.25  # Targets over what was measured alone


@dataclass(frozen=True, slots=True)
class Part:
    """One load of one seed, for `seconds`."""

    system: str  # alone, batch alone, or the packing that ran both
    seed: int
    seconds: float
    rate_per_s: float  # of interactive requests as they came
    interactive_tokens_per_s: float
    batch_tokens_per_s: float
    ttft_s: tuple[float, ...] = ()
    tpot_s: tuple[float, ...] = ()
    jobs: tuple[JobRecord, ...] = ()  # those that ended in this part

    @property
    def busy(self) -> float:
        """Share of the time in which a job ran."""
        return sum(job.end_s - job.start_s for job in self.jobs) / self.seconds

    def row(self) -> dict[str, Any]:
        """For the record, in milliseconds."""
        steps = [job for job in self.jobs if job.num_tokens == job.num_rows]
        return {
            "system": self.system,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "requests": len(self.ttft_s),
            "requests_per_s": round(self.rate_per_s, 3),
            "interactive_tokens_per_s": round(self.interactive_tokens_per_s, 1),
            "batch_tokens_per_s": round(self.batch_tokens_per_s, 1),
            "busy": round(self.busy, 3),
            "ttft_ms": _spread(_ms(self.ttft_s)),
            "tpot_ms": _spread(_ms(self.tpot_s)),
            "jobs": len(self.jobs),
            "job_ms": _spread(_lengths_ms(self.jobs)),
            "decode_step_ms": _spread(_lengths_ms(steps)),
            "decode_rows": _spread([job.num_rows for job in steps]),
        }


def interactive_part(
    system: str, seed: int, unit: Unit, traffic: Traffic, draws: Draws, pace: tuple[float, int]
) -> Part:
    """Interactive requests beside whatever loop the traffic runs. pace: requests/s, their number.

    Batch tokens and jobs are those between the first and the last of their arrivals.
    """
    unit.stats()
    start_s = time.monotonic()
    answers = traffic.poisson(INTERACTIVE, draws, *pace)
    return _part(system, seed, unit, traffic, (start_s, answers[-1].due_s), answers)


def loop_part(system: str, unit: Unit, traffic: Traffic, seconds: float, seed: int) -> Part:
    """Nothing but the loop that runs."""
    unit.stats()
    start_s = time.monotonic()
    time.sleep(seconds)
    return _part(system, seed, unit, traffic, (start_s, time.monotonic()), ())


def _part(
    system: str,
    seed: int,
    unit: Unit,
    traffic: Traffic,
    window: tuple[float, float],
    answers: Sequence[Answer],
) -> Part:
    seconds = window[1] - window[0]
    jobs = unit.stats().jobs
    return Part(
        system,
        seed,
        seconds,
        len(answers) / seconds,
        traffic.tokens_between(*window, ServiceClass.INTERACTIVE) / seconds,
        traffic.tokens_between(*window, ServiceClass.BATCH) / seconds,
        tuple(answer.ttft_s for answer in answers),
        tuple(answer.tpot_s for answer in answers),
        tuple(job for job in jobs if window[0] <= job.start_s and job.end_s <= window[1]),
    )


def step_time_errors(unit: Unit) -> dict[str, float]:
    """Mean |predicted / actual - 1| of the unit's last jobs, by model."""
    return {model.name: round(model.step_time_error, 4) for model in unit.stats().models}


def targets(parts: Sequence[Part]) -> Slo:
    """Of parts with interactive requests alone."""
    return Slo(FACTOR * p99([p.ttft_s for p in parts]), FACTOR * p99([p.tpot_s for p in parts]))


def p99(series: Sequence[Sequence[float]]) -> float:
    """Of all together."""
    return float(np.percentile(np.concatenate(series), 99))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all parts of one system come to, against targets and what is left for batch work."""

    # ttft_ratio, tpot_ratio: p99 over target
    ttft_ratio: float
    tpot_ratio: float
    # batch tokens/s over those alone less the interactive work, counted at its cost at best
    kept: float
    most_kept: float  # what any packing could keep, see `most_kept`


def verdict(
    parts: Sequence[Part], system: str, slo: Slo, capacity_per_s: float, num_models: int = 1
) -> Verdict:
    """See the bench."""
    mine = [part for part in parts if part.system == system]
    batch_per_s = _mean([p.batch_tokens_per_s for p in parts if p.system == BATCH_ALONE])
    kept_per_s = _mean([part.batch_tokens_per_s for part in mine])
    work = _mean([part.rate_per_s for part in mine]) / capacity_per_s
    return Verdict(
        p99([part.ttft_s for part in mine]) / slo.ttft_s,
        p99([part.tpot_s for part in mine]) / slo.tpot_s,
        kept_per_s / (batch_per_s * (1.0 - work)),
        most_kept(parts, slo.tpot_s / num_models) / (batch_per_s * (1.0 - work)),
    )


def most_kept(parts: Sequence[Part], longest_s: float) -> float:
    """Batch tokens/s beside interactive ones as they came alone, in jobs of `longest_s` on end.

    A job takes a fixed time and some for each token, fitted to the jobs of all parts. Longer jobs
    would be more efficient, but make tokens late: with two models a token comes with every other
    job. Where no job gets so long, the longest of batch work alone count.
    """
    jobs = [job for part in parts for job in part.jobs]
    tokens = np.array([job.num_tokens for job in jobs], dtype=np.float64)
    seconds = np.array([job.end_s - job.start_s for job in jobs])
    per_token_s, fixed_s = np.polyfit(tokens, seconds, 1)
    longest_s = min(longest_s, fixed_s + per_token_s * tokens.max())
    tokens_per_s = (longest_s - fixed_s) / per_token_s / longest_s
    return float(
        tokens_per_s - _mean([p.interactive_tokens_per_s for p in parts if p.system == ALONE])
    )


def decode_steps(parts: Sequence[Part]) -> dict[str, Any]:
    """By system, of the jobs in which all rows decode: how long they are, and how many 20 ms."""
    found: dict[str, Any] = {}
    for system in dict.fromkeys(part.system for part in parts):
        jobs = [job for part in parts if part.system == system for job in part.jobs]
        steps_ms = _lengths_ms([job for job in jobs if job.num_tokens == job.num_rows])
        if steps_ms:
            share = sum(each >= _STEP_MS for each in steps_ms) / len(steps_ms)
            row = {"count": len(steps_ms), "ms": _spread(steps_ms), "share_of_20_ms": share}
            found[system] = {**row, "all_jobs_ms": _spread(_lengths_ms(jobs))}
    return found


def claims_of(found: Verdict) -> list[Claim]:
    """Each against its target."""
    return [
        Claim("interactive_ttft_p99_ratio", round(found.ttft_ratio, 4), "x", 1.0),
        Claim("interactive_tpot_p99_ratio", round(found.tpot_ratio, 4), "x", 1.0),
        Claim("batch_throughput_kept", round(found.kept, 4), "share", 0.85),
    ]


def samples_of(parts: Sequence[Part]) -> dict[str, Sequence[float]]:
    """Every request of every part in milliseconds, and the batch tokens/s."""
    found: dict[str, Sequence[float]] = {}
    for part in parts:
        name = f"{part.system}, seed {part.seed}"
        if part.ttft_s:
            found[f"ttft_ms {name}"] = _ms(part.ttft_s)
            found[f"tpot_ms {name}"] = _ms(part.tpot_s)
        found[f"batch_tokens_per_s {name}"] = [round(part.batch_tokens_per_s, 1)]
    return found


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    return percentiles(values) if values else None


def _lengths_ms(jobs: Sequence[JobRecord]) -> list[float]:
    return _ms([job.end_s - job.start_s for job in jobs])


def _ms(seconds: Sequence[float]) -> list[float]:
    return [round(1e3 * value, 2) for value in seconds]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
