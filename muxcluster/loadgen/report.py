"""The text that `vllm bench serve` prints, label by label."""

import math
from collections.abc import Mapping
from typing import Any

WIDTH = 50
_SECTIONS = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
}


def report(result: Mapping[str, Any]) -> str:
    """The table of `result` (`figures`, with `max_concurrency` and `request_rate`)."""
    lines = [_heading(" Serving Benchmark Result ", "=")]
    lines += [_line(label, value) for label, value in _summary(result)]
    for name, (short, title) in _SECTIONS.items():
        lines.append(_heading(title, "-"))
        lines += [
            _line(f"{statistic} {short} (ms):", float(result[f"{key}_{name}_ms"]))
            for statistic, key in (("Mean", "mean"), ("Median", "median"), ("P99", "p99"))
        ]
    lines.append("=" * WIDTH)
    return "\n".join(lines)


def _summary(result: Mapping[str, Any]) -> list[tuple[str, Any]]:
    entries = [
        ("Successful requests:", result["completed"]),
        ("Failed requests:", result["failed"]),
    ]
    if result["max_concurrency"] is not None:
        entries.append(("Maximum request concurrency:", result["max_concurrency"]))
    rate = float(result["request_rate"])
    if not math.isinf(rate):
        entries.append(("Request rate configured (RPS):", rate))
    entries += [
        ("Benchmark duration (s):", float(result["duration"])),
        ("Total input tokens:", result["total_input_tokens"]),
        ("Total generated tokens:", result["total_output_tokens"]),
        ("Request throughput (req/s):", float(result["request_throughput"])),
    ]
    if result["request_goodput"] is not None:
        entries.append(("Request goodput (req/s):", float(result["request_goodput"])))
    return [
        *entries,
        ("Output token throughput (tok/s):", float(result["output_throughput"])),
        ("Peak output token throughput (tok/s):", float(result["max_output_tokens_per_s"])),
        ("Peak concurrent requests:", float(result["max_concurrent_requests"])),
        ("Total token throughput (tok/s):", float(result["total_token_throughput"])),
    ]


def _heading(text: str, fill: str) -> str:
    return f"{text:{fill}^{WIDTH}}"


def _line(label: str, value: float | int) -> str:
    return f"{label:<40} {value:<10.2f}" if isinstance(value, float) else f"{label:<40} {value:<10}"
