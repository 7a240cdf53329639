"""Play a workload on units in real time, and record its requests."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from time import monotonic, sleep
from typing import Any

import numpy as np

from bench.gpu.multiplexing.work import Work
from bench.gpu.running.listener import Heard, Listener
from muxcluster.core.request import Request
from muxcluster.core.sampling import SamplingParams
from muxcluster.engine.unit.unit import Unit
from muxcluster.placement.cost import Cost
from muxcluster.workload.arrival import Arrival
from muxcluster.workload.metrics.records import Ending, Record, RecordLog, Records
from muxcluster.workload.metrics.slo import attainment_at_scales
from muxcluster.workload.metrics.window import Window, figures, latency_s, normalised_s, ttft_s

SLO_SCALE = 8.0  # Times what a request takes alone on the whole GPU
_BEFORE = 0.2  # Part of the time that is left out: queues fill in it
_WARM_REQUESTS, _WARM_TOKENS = 12, 12
_HEAD_START_S = 0.05


def window_of(work: Work) -> Window:
    """Over which throughput is counted."""
    return Window(_BEFORE * work.duration_s, work.duration_s)


def warm_up(
    units: Mapping[str, Unit], vocab: Mapping[str, int], listener: Listener, until_s: float
) -> None:
    """Every model prefills and decodes in several batch sizes. Raises TimeoutError."""
    random = np.random.default_rng(0)
    for name, unit in units.items():
        for number in range(_WARM_REQUESTS):
            prompt = random.integers(vocab[name], size=8 + number, dtype=np.int32)
            sampling = SamplingParams(
                temperature=0.0, ignore_eos=True, max_tokens=_WARM_TOKENS + number
            )
            unit.submit(Request(f"warm-{name}-{number}", name, prompt, sampling))
    if not listener.wait(len(units) * _WARM_REQUESTS, until_s):
        raise TimeoutError("the warm-up did not end in time")


def play(
    units: Mapping[str, Unit],
    requests: Sequence[tuple[Arrival, Request]],
    listener: Listener,
    until_s: float,
) -> Records:
    """Submits each when its time has come; what has not ended at `until_s` is left unfinished.

    listener: hears the units, and nothing before.
    """
    start_s = monotonic() + _HEAD_START_S
    for arrival, request in requests:
        if (wait_s := start_s + arrival.time_s - monotonic()) > 0:
            sleep(wait_s)
        units[arrival.model].submit(request)
    listener.wait(len(requests), until_s)
    return _records(units, [arrival for arrival, _ in requests], listener, start_s)


def requests_of(
    arrivals: Sequence[Arrival], vocab: Mapping[str, int], seed: int
) -> list[tuple[Arrival, Request]]:
    """Each with a prompt of random tokens and exactly as much output as it wants."""
    random = np.random.default_rng(seed)
    found = []
    for arrival in arrivals:
        prompt = random.integers(vocab[arrival.model], size=arrival.prompt_tokens, dtype=np.int32)
        sampling = SamplingParams(
            temperature=0.0, ignore_eos=True, max_tokens=arrival.output_tokens
        )
        request = Request(arrival.request_id, arrival.model, prompt, sampling, cacheable=False)
        found.append((arrival, request))
    return found


def _records(
    models: Mapping[str, Unit], arrivals: Sequence[Arrival], listener: Listener, start_s: float
) -> Records:
    log = RecordLog(tuple(models))
    for arrival in arrivals:
        heard = listener.heard.get(arrival.request_id, Heard())
        times = [max(arrival.time_s, at - start_s) for at in heard.times_s]
        is_whole = heard.end == "finished" and len(times) == arrival.output_tokens
        log.add(
            Record(
                model=arrival.model,
                arrival_s=arrival.time_s,
                first_token_s=times[0] if times else None,
                last_token_s=times[-1] if times else None,
                prompt_tokens=arrival.prompt_tokens,
                output_tokens=len(times),
                ending=Ending.FINISHED if is_whole else Ending.UNFINISHED,
            )
        )
    return log.records()


def row_of(records: Records, work: Work, cost: Cost) -> dict[str, Any]:
    """Throughput in the window, attainment and percentiles of all requests, NaN as None."""
    window = window_of(work)
    found = figures(records, window)
    done = records.where(records.is_finished)
    base = base_latencies(records, work, cost)
    by_model = {
        name: figures(records.of_model(name), window).throughput.requests_per_s
        for name in records.models
    }
    return {
        "requests": len(records),
        "finished": len(done),
        "requests_per_s": found.throughput.requests_per_s,
        "output_tokens_per_s": found.throughput.output_tokens_per_s,
        "slo_attainment": float(attainment_at_scales(records, base, (SLO_SCALE,))[0]),
        "ttft_p99_s": _p99(ttft_s(done)),
        "latency_p99_s": _p99(latency_s(done)),
        "normalised_p99_s": _p99(normalised_s(done)),
        "requests_per_s_by_model": by_model,
        "mean_output_tokens": fmean(done.rows["output_tokens"].tolist()) if len(done) else None,
    }


def _p99(values: np.ndarray) -> float | None:
    return float(np.percentile(values, 99)) if len(values) else None


def base_latencies(records: Records, work: Work, cost: Cost) -> np.ndarray:
    """[n] seconds that each request, whole, would take alone on the whole GPU."""
    shapes = {tenant.name: tenant.shape for tenant in work.tenants}
    lengths = records.rows["prompt_tokens"], np.maximum(records.rows["output_tokens"], 1)
    columns = zip(records.rows["model"].tolist(), *(each.tolist() for each in lengths), strict=True)
    found = []
    for model, prompt, output in columns:
        shape = shapes[records.models[model]]
        step_s = cost.decode_s(shape, 1, 1.0, 1, prompt + output / 2)
        found.append(cost.prefill_s(shape, 1, 1.0, 1, prompt) + (output - 1) * step_s)
    return np.array(found)
