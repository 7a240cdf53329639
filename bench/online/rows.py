"""The record of bench/serving.py: a row a number of concurrent requests, and the claims."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.harness import Claim, percentiles
from muxcluster.loadgen.load import Outcome
from muxcluster.text.tokenizer import Tokenizer

Answer = Mapping[str, Any]
BF16_OVER = "in_process_bf16_over_openvino_default"


@dataclass(frozen=True, slots=True)
class Case:
    """Requests of `num_tokens` output tokens, `concurrency` of them at a time."""

    concurrency: int
    num_tokens: int
    prompts: list[list[int]]


@dataclass(frozen=True, slots=True)
class Measured:
    """One case, everywhere."""

    case: Case
    http: Outcome  # over HTTP
    used_s: Mapping[str, float]  # processor seconds there by kind of process
    # unit, unit_bf16: our unit in process, as bench/online/unit.py answers
    unit: Answer
    unit_bf16: Answer
    hf: Answer  # bench/online/hf.py
    # by kind of arithmetic, as bench/online/openvino_genai.py, None where it was not run
    openvino: Mapping[str, Answer] | None


def row_of(measured: Measured, words: Tokenizer) -> dict[str, Any]:
    """One entry of the record."""
    case, http, hf, unit = measured.case, measured.http, measured.hf, measured.unit
    num_tokens = sum(answer.num_output_tokens for answer in http.answers)
    rate = num_tokens / http.duration_s
    static = hf["static_tokens"]
    texts = [words.decode(tokens) for tokens in static]
    row = {
        "concurrency": case.concurrency,
        "requests": len(case.prompts),
        "output_tokens": case.num_tokens,
        "tokens_per_s": round(rate, 1),
        "in_process_tokens_per_s": unit["tokens_per_s"],
        "in_process_bf16_tokens_per_s": measured.unit_bf16["tokens_per_s"],
        "hf_static_tokens_per_s": hf["hf_static_tokens_per_s"],
        "hf_continuous_tokens_per_s": hf["hf_continuous_tokens_per_s"],
        "over_hf_best": _over(
            rate, max(hf["hf_static_tokens_per_s"], hf["hf_continuous_tokens_per_s"])
        ),
        "ttft_ms": percentiles([1e3 * answer.ttft_s for answer in http.answers]),
        "cpu_s_per_1000_tokens": {
            name: round(1000 * seconds / num_tokens, 3)
            for name, seconds in sorted(measured.used_s.items())
        },
        "in_process_cpu_s_per_1000_tokens": unit["cpu_s_per_1000_tokens"],
        "in_process_bf16_cpu_s_per_1000_tokens": measured.unit_bf16["cpu_s_per_1000_tokens"],
        "client_cpu_share": round(http.client_cpu_s / http.duration_s, 3),
        "answers_equal_to_hf_static": _same([answer.text for answer in http.answers], texts),
        "in_process_answers_equal_to_hf_static": _same(unit["tokens"], static),
        "hf_answers_equal_to_each_other": _same(static, hf["continuous_tokens"]),
    }
    if measured.openvino is not None:
        row |= _beside_openvino(rate, measured, measured.openvino)
    return row


def _beside_openvino(
    rate: float, measured: Measured, kinds: Mapping[str, Answer]
) -> dict[str, Any]:
    unit, unit_bf16 = measured.unit["tokens_per_s"], measured.unit_bf16["tokens_per_s"]
    static = measured.hf["static_tokens"]
    fp32, default = kinds["fp32"]["tokens_per_s"], kinds["default"]["tokens_per_s"]
    return {
        "openvino_tokens_per_s": fp32,
        "openvino_default_tokens_per_s": default,
        "over_openvino": _over(rate, fp32),
        "over_openvino_default": _over(rate, default),
        "in_process_over_openvino": _over(unit, fp32),
        BF16_OVER: _over(unit_bf16, default),
        "openvino_answers_equal_to_hf_static": _same(kinds["fp32"]["tokens"], static),
    }


def _over(rate: float, other: float) -> float:
    return round(rate / other, 3)


def _same(found: Sequence[object], expected: Sequence[object]) -> int:
    return sum(a == b for a, b in zip(found, expected, strict=True))


def claims_of(rows: Sequence[Mapping[str, Any]]) -> Iterator[Claim]:
    """Ours over the better of Hugging Face's; where OpenVINO ran over it too, both ways."""
    for name, entry in (
        ("tokens_per_s_over_hf_best", "over_hf_best"),
        ("tokens_per_s_over_openvino", "over_openvino"),
        ("tokens_per_s_in_process_over_openvino", "in_process_over_openvino"),
        ("tokens_per_s_in_process_bf16_over_openvino_default", BF16_OVER),
    ):
        for row in rows:
            if entry in row:
                yield Claim(f"{name}_at_{row['concurrency']}", row[entry], "x", 1.0)
