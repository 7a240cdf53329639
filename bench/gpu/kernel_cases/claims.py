"""Claims of bench/gpu/kernels.py, from its timed cases."""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.gpu.kernel_cases.speed.attention import (
    DECODE,
    LLAMA3_8B,
    PREFILL,
    decode_case,
    prefill_case,
)
from bench.gpu.kernel_cases.speed.prefix import (
    CROSSOVER_DISTINCT,
    CROSSOVER_PREFIXES,
    DECODES,
    SHAPES,
    prefix_case,
)
from bench.gpu.kernel_cases.speed.rows import HIDDEN, INNER, TOKENS
from bench.gpu.kernel_cases.speed.sample import LIMITS, sample_case
from bench.gpu.kernel_cases.speed.sample import SHAPES as SAMPLE_SHAPES
from bench.harness import Claim

Rows = Sequence[Mapping[str, Any]]

# Name, kernel, case, which share, and what is aimed at.
_SHARES = (
    ("decode", "paged_decode", decode_case(*DECODE[0], LLAMA3_8B), "share_of_copy", 0.85),
    ("prefill", "paged_prefill", prefill_case(*PREFILL[0], LLAMA3_8B), "share_of_matmul", 0.55),
    ("norm", "add_rms_norm", f"{TOKENS[0]} x {HIDDEN}", "share_of_copy", None),
    ("activation", "silu_mul", f"{TOKENS[0]} x {INNER}", "share_of_copy", None),
    ("rotary", "rotary", f"{TOKENS[0]} tokens, {LLAMA3_8B}", "share_of_copy", None),
    ("kv_write", "kv_write", f"{TOKENS[0]} tokens, {LLAMA3_8B}", "share_of_copy", None),
)

# Name, kernel, case and rival: how many times faster than it; at least 1 is aimed at.
_FASTER = (
    ("decode_over_sdpa", "paged_decode", decode_case(*DECODE[0], LLAMA3_8B), "sdpa"),
    ("prefill_over_sdpa", "paged_prefill", prefill_case(*PREFILL[0], LLAMA3_8B), "sdpa"),
    ("prefill_over_flex", "paged_prefill", prefill_case(*PREFILL[0], LLAMA3_8B), "flex"),
    ("decode_over_flashinfer", "paged_decode", decode_case(*DECODE[0], LLAMA3_8B), "flashinfer"),
    ("sample_over_sort", "sample", sample_case(*SAMPLE_SHAPES[0], LIMITS[0]), "sort"),
    *(
        (
            f"prefix_over_paged_{decodes}_at_{prefix}_{distinct}",
            "prefix_attention",
            prefix_case(decodes, 0, prefix, distinct),
            "paged",
        )
        for decodes in DECODES
        for prefix, distinct in SHAPES
    ),
)


def claims(checks: Rows, rows: Rows) -> list[Claim]:
    """Only of cases that were reached."""
    wrong = sum(not check["ok"] for check in checks)
    made = [
        Claim("kernel_cases_correct", len(checks) - wrong, "cases", len(checks)),
        Claim("kernel_cases_wrong", wrong, "cases", 0),
    ]
    for name, kernel, case, share, aim in _SHARES:
        row = _row(rows, kernel, case)
        if share in row:
            made.append(Claim(f"{name}_{share}", round(row[share], 4), "share", aim))
    for name, kernel, case, rival in _FASTER:
        times = _times_faster(_row(rows, kernel, case), rival)
        if times is not None:
            made.append(Claim(name, round(times, 3), "x", 1.0))
    return made + _crossovers(rows)


def _crossovers(rows: Rows) -> list[Claim]:
    """Shortest prefix from which prefix-shared attention is faster at it and all longer ones."""
    found = []
    for decodes in DECODES:
        cases = [prefix_case(decodes, 0, each, CROSSOVER_DISTINCT) for each in CROSSOVER_PREFIXES]
        times = [_times_faster(_row(rows, "prefix_attention", case), "paged") for case in cases]
        shortest = None
        for prefix, faster in zip(reversed(CROSSOVER_PREFIXES), reversed(times), strict=True):
            if faster is None or faster <= 1:
                break
            shortest = prefix
        if shortest is not None:
            found.append(Claim(f"prefix_crossover_{decodes}", shortest, "prefix tokens"))
    return found


def _row(rows: Rows, kernel: str, case: str) -> Mapping[str, Any]:
    return next((row for row in rows if (row["kernel"], row["case"]) == (kernel, case)), {})


def _times_faster(row: Mapping[str, Any], rival: str) -> float | None:
    faster: float | None = row.get("rivals", {}).get(rival, {}).get("times_faster")
    return faster
