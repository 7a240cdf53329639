"""The figures of `vllm bench serve`, under its JSON keys and by its definitions."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from muxcluster.loadgen.answer import Answer
from muxcluster.loadgen.load import Outcome

METRICS = ("ttft", "tpot", "itl", "e2el")


def figures(outcome: Outcome, goodput_ms: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Return JSON values. Means and percentiles are over the completed requests; 0 if there are
    none.

    goodput_ms: limits in milliseconds by metric (`ttft`, `tpot`, `e2el`); a request is good if it
    keeps them all.
    """
    done = [answer for answer in outcome.answers if answer.is_complete]
    duration_s = outcome.duration_s
    num_input = sum(answer.num_prompt_tokens for answer in done)
    num_output = sum(answer.num_output_tokens for answer in done)
    good = None
    if goodput_ms:
        good = sum(_is_good(answer, goodput_ms) for answer in done) / duration_s
    return {
        "duration": duration_s,
        "completed": len(done),
        "failed": len(outcome.answers) - len(done),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(done) / duration_s,
        "request_goodput": good,
        "output_throughput": num_output / duration_s,
        "total_token_throughput": (num_input + num_output) / duration_s,
        "max_output_tokens_per_s": _peak_tokens(done),
        "max_concurrent_requests": _peak_requests(done),
        "rtfx": 0.0,
        **_latencies(done),
        **_details(outcome),
        "muxcluster": _ours(outcome, done),
    }


def _latencies(done: Sequence[Answer]) -> dict[str, float]:
    values_ms = {
        "ttft": [1e3 * answer.ttft_s for answer in done],
        "tpot": [1e3 * tpot_s(answer) for answer in done if answer.num_output_tokens > 1],
        "itl": [1e3 * gap for answer in done for gap in gaps_s(answer)],
        "e2el": [1e3 * answer.latency_s for answer in done],
    }
    found: dict[str, float] = {}
    for name in METRICS:
        array = np.array(values_ms[name] or [0.0])
        found[f"mean_{name}_ms"] = float(array.mean())
        found[f"median_{name}_ms"] = float(np.median(array))
        found[f"std_{name}_ms"] = float(array.std())
        found[f"p99_{name}_ms"] = float(np.percentile(array, 99))
    return found


def _details(outcome: Outcome) -> dict[str, Any]:
    answers = outcome.answers
    return {
        "input_lens": [answer.num_prompt_tokens for answer in answers],
        "output_lens": [answer.num_output_tokens for answer in answers],
        "ttfts": [answer.ttft_s if answer.is_complete else 0.0 for answer in answers],
        "itls": [gaps_s(answer) for answer in answers],
        "latencies": [answer.latency_s if answer.is_complete else 0.0 for answer in answers],
        "start_times": [answer.start_s for answer in answers],
        "queue_times": list(outcome.queue_s),
        "errors": [answer.error for answer in answers],
    }


def _ours(outcome: Outcome, done: Sequence[Answer]) -> dict[str, Any]:
    """Return figures that vLLM does not print: client limits, and the arrival of output."""
    num_events = sum(len(answer.event_times_s) for answer in done)
    reasons = [answer.finish_reason or "none" for answer in done]
    return {
        "client_cpu_share": outcome.client_cpu_s / outcome.duration_s,
        "events": num_events,
        "events_per_read": num_events / max(1, sum(answer.num_reads for answer in done)),
        "finish_reasons": {reason: reasons.count(reason) for reason in sorted(set(reasons))},
    }


def tpot_s(answer: Answer) -> float:
    """Seconds per output token after the first; the answer has at least two tokens."""
    return (answer.latency_s - answer.ttft_s) / (answer.num_output_tokens - 1)


def gaps_s(answer: Answer) -> list[float]:
    """Seconds between the events that carried output."""
    return [after - before for before, after in pairwise(answer.event_times_s)]


def _is_good(answer: Answer, limits_ms: Mapping[str, float]) -> bool:
    tpot = tpot_s(answer) if answer.num_output_tokens > 1 else 0.0
    found = {"ttft": answer.ttft_s, "tpot": tpot, "e2el": answer.latency_s}
    return all(1e3 * found[name] <= limit_ms for name, limit_ms in limits_ms.items())


def _peak_tokens(done: Sequence[Answer]) -> float:
    """Most events with output within one second, seconds counted from the first start."""
    if not done:
        return 0.0
    start_s = min(answer.start_s for answer in done)
    times = np.concatenate([answer.event_times_s for answer in done]) - start_s
    return float(np.bincount(times.astype(np.int64)).max())


def _peak_requests(done: Sequence[Answer]) -> int:
    """Most requests open within one second, as in `_peak_tokens`."""
    if not done:
        return 0
    origin_s = min(answer.start_s for answer in done)
    last_s = max(answer.event_times_s[-1] for answer in done)
    seconds = np.zeros(int(last_s - origin_s) + 1, dtype=np.int64)
    for answer in done:
        first = int(answer.start_s - origin_s)
        seconds[first : int(answer.event_times_s[-1] - origin_s) + 1] += 1
    return int(seconds.max())
