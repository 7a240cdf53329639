"""Figures by hand, and vLLM's labels and keys."""

import math
from dataclasses import replace

import pytest

from muxcluster.cli.bench import goodput_limits
from muxcluster.loadgen.answer import Answer
from muxcluster.loadgen.figures import figures
from muxcluster.loadgen.load import Outcome, Pace, arrivals_s
from muxcluster.loadgen.report import report

FIRST = Answer(100.0, (100.1, 100.2, 100.4), "abc", 10, 3, 3, "length")
SECOND = Answer(100.5, (100.8, 101.8), "ab", 20, 2, 2, "length")
FAILED = Answer(101.0, error="HTTP/1.1 429")
OUTCOME = Outcome((FIRST, SECOND, FAILED), (0.0, 0.0, 0.2), 2.0, 0.5)
LABELS = """Successful requests, Failed requests, Maximum request concurrency, Request rate
configured (RPS), Benchmark duration (s), Total input tokens, Total generated tokens,
Request throughput (req/s), Request goodput (req/s), Output token throughput (tok/s),
Peak output token throughput (tok/s), Peak concurrent requests, Total token throughput
(tok/s)"""
KEYS = """duration, completed, failed, total_input_tokens, total_output_tokens,
request_throughput, request_goodput, output_throughput, total_token_throughput,
max_output_tokens_per_s, max_concurrent_requests, rtfx, input_lens, output_lens, ttfts,
itls, latencies, start_times, queue_times, errors"""


def test_figures_by_hand() -> None:
    found = figures(OUTCOME)
    assert (found["completed"], found["failed"]) == (2, 1)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (30, 5)
    assert found["output_throughput"] == 2.5 and found["total_token_throughput"] == 17.5
    assert found["request_throughput"] == 1.0 and found["request_goodput"] is None
    assert found["mean_ttft_ms"] == pytest.approx(200.0)
    # (400 - 100) / 2 and (1300 - 300) / 1
    assert found["mean_tpot_ms"] == pytest.approx((150.0 + 1000.0) / 2)
    assert found["median_itl_ms"] == pytest.approx(200.0)
    assert found["mean_e2el_ms"] == pytest.approx((400.0 + 1300.0) / 2)
    assert found["max_output_tokens_per_s"] == 4.0  # three and one in second 0, one in second 1
    assert found["max_concurrent_requests"] == 2
    assert found["errors"] == ["", "", "HTTP/1.1 429"]
    assert found["muxcluster"]["client_cpu_share"] == 0.25
    assert found["muxcluster"]["events_per_read"] == 1.0


@pytest.mark.parametrize(
    ("limits", "num_good"),
    [(["ttft:200"], 1), (["ttft:400", "tpot:500"], 1), (["e2el:2000"], 2), (["tpot:1"], 0)],
)
def test_goodput_counts_requests_that_keep_every_limit(limits: list[str], num_good: int) -> None:
    assert figures(OUTCOME, goodput_limits(limits))["request_goodput"] == num_good / 2.0


def test_one_token_has_no_time_per_token() -> None:
    one = replace(FIRST, event_times_s=(100.1,), num_output_tokens=1)
    found = figures(Outcome((one,), (0.0,), 1.0, 0.0), {"tpot": 1.0})
    assert found["mean_tpot_ms"] == 0.0 and found["request_goodput"] == 1.0


def test_keys_and_labels_are_those_of_vllm() -> None:
    found = figures(OUTCOME, {"ttft": 200.0})
    assert {key.strip() for key in KEYS.split(",")} < found.keys()
    for metric in ("ttft", "tpot", "itl", "e2el"):
        assert {f"{kind}_{metric}_ms" for kind in ("mean", "median", "std", "p99")} < found.keys()
    text = report({**found, "max_concurrency": 8, "request_rate": 4.0})
    lines = text.splitlines()
    wanted = [" ".join(label.split()) + ":" for label in LABELS.split(",")]
    assert [line[:40].rstrip() for line in lines[1 : 1 + len(wanted)]] == wanted
    for name in ("TTFT", "TPOT", "ITL", "E2EL"):
        labels = [line[:40].rstrip() for line in lines if name in line]
        assert labels == [f"{kind} {name} (ms):" for kind in ("Mean", "Median", "P99")]
    assert all(len(line) >= 50 for line in lines)


def test_what_was_not_asked_for_is_not_shown() -> None:
    text = report({**figures(OUTCOME), "max_concurrency": None, "request_rate": "inf"})
    assert not any(word in text for word in ("goodput", "configured", "Maximum"))


def test_arrivals_have_the_rate_and_the_burstiness() -> None:
    assert arrivals_s(3, Pace()) == [0.0, 0.0, 0.0]
    times = arrivals_s(4001, Pace(rate_per_s=8.0))
    assert times == arrivals_s(4001, Pace(rate_per_s=8.0)) != arrivals_s(4001, Pace(8.0, seed=1))
    assert 4000 / times[-1] == pytest.approx(8.0, rel=0.1)

    def spread(burstiness: float) -> float:
        times = arrivals_s(4001, Pace(8.0, burstiness))
        gaps = [after - before for before, after in zip(times, times[1:], strict=False)]
        mean = sum(gaps) / len(gaps)
        return math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean

    # a gamma distribution's coefficient of variation is 1 / sqrt(shape)
    assert spread(1.0) == pytest.approx(1.0, rel=0.1)
    assert spread(4.0) == pytest.approx(0.5, rel=0.1)
