"""Throughput, latency and time accounts against counting request by request."""

import math
import statistics
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.core.events import FinishReason
from muxcluster.core.request import ServiceClass
from muxcluster.workload.metrics.records import ENDINGS, ROW, Ending, Record, RecordLog, Records
from muxcluster.workload.metrics.window import (
    Window,
    arrived,
    figures,
    rate_weighted,
    spread,
    throughput,
)

TICK = 1 / 64
"""Times on a binary grid: sums and comparisons in the tests are exact."""


def log_of(records: list[Record]) -> Records:
    log = RecordLog(("a", "b"))
    for record in records:
        log.add(record)
    return log.records()


@st.composite
def one_record(draw: st.DrawFn) -> Record:
    arrival = draw(st.integers(0, 640)) * TICK
    model = draw(st.sampled_from(["a", "b"]))
    num_prompt = draw(st.integers(1, 500))
    if draw(st.booleans()):
        first = arrival + draw(st.integers(0, 64)) * TICK
        num_output = draw(st.integers(1, 9))
        gap = draw(st.integers(0, 16)) * TICK
        last = first + gap * (num_output - 1)
        return Record(model, arrival, first, last, num_prompt, num_output)
    ending = draw(st.sampled_from([Ending.ABORTED, Ending.FAILED, Ending.UNFINISHED]))
    return Record(model, arrival, None, None, num_prompt, 0, ending=ending)


many = st.lists(one_record(), max_size=30)


def token_times(record: Record) -> list[float]:
    if record.first_token_s is None or record.last_token_s is None:
        return []
    gaps = max(record.output_tokens - 1, 1)
    step = (record.last_token_s - record.first_token_s) / gaps
    return [record.first_token_s + k * step for k in range(record.output_tokens)]


@given(many, st.integers(0, 900), st.integers(1, 500))
def test_throughput_counts_what_came_inside(records: list[Record], start: int, ticks: int) -> None:
    # windows end between the ticks, where no token falls
    window = Window((start - 0.5) * TICK, (start - 0.5 + ticks) * TICK)
    found = throughput(log_of(records), window)

    def inside(time: float | None) -> bool:
        return time is not None and window.start_s <= time < window.end_s

    tokens = sum(inside(time) for record in records for time in token_times(record))
    prompts = sum(record.prompt_tokens for record in records if inside(record.first_token_s))
    ends = sum(inside(record.last_token_s) for record in records)
    counts = np.array([ends, prompts, tokens])
    per_s = [found.requests_per_s, found.prompt_tokens_per_s, found.output_tokens_per_s]
    assert np.array(per_s) * window.duration_s == pytest.approx(counts)


@given(many, st.lists(st.integers(0, 30_000), min_size=3, max_size=3, unique=True))
def test_windows_add_up(records: list[Record], edges_ms: list[int]) -> None:
    low, middle, high = (edge / 1000 for edge in sorted(edges_ms))
    log = log_of(records)

    def counts(start: float, end: float) -> np.ndarray:
        window = Window(start, end)
        found = throughput(log, window)
        per_s = [found.requests_per_s, found.prompt_tokens_per_s, found.output_tokens_per_s]
        return np.array(
            [*(value * window.duration_s for value in per_s), len(arrived(log, window))]
        )

    assert counts(low, middle) + counts(middle, high) == pytest.approx(counts(low, high))


@given(many, st.randoms(use_true_random=False))
def test_order_does_not_matter(records: list[Record], random: Random) -> None:
    shuffled = list(records)
    random.shuffle(shuffled)
    window = Window(0.0, 5.0)
    one, other = figures(log_of(records), window), figures(log_of(shuffled), window)
    assert one.throughput == other.throughput
    for name in ("ttft_s", "tpot_s", "latency_s", "normalised_s"):
        before, after = getattr(one, name), getattr(other, name)
        assert before.count == after.count
        assert before.p99 == pytest.approx(after.p99, nan_ok=True)
        assert before.mean == pytest.approx(after.mean, nan_ok=True)


@given(many)
def test_models_sum_to_the_whole(records: list[Record]) -> None:
    log, window = log_of(records), Window(0.0, 8.0)
    whole = figures(log, window)
    assert log.models == ("a", "b")
    parts = {name: figures(log.of_model(name), window) for name in log.models}
    assert sum(part.num_requests for part in parts.values()) == whole.num_requests
    tokens = sum(part.throughput.output_tokens_per_s for part in parts.values())
    assert tokens == pytest.approx(whole.throughput.output_tokens_per_s)


def test_figures_by_hand() -> None:
    log = log_of(
        [
            Record("a", 0.0, 0.5, 2.5, 10, 5, queue_s=0.25, prefill_s=0.25, decode_s=2.0),
            Record("b", 1.0, 2.0, 2.0, 20, 1, queue_s=0.75, prefill_s=0.25),
            Record("a", 1.5, None, None, 30, 0, ServiceClass.BATCH, Ending.REJECTED),
            Record("b", 9.0, 9.5, 11.5, 40, 3, decode_s=2.0),  # arrives after the window
        ]
    )
    found = figures(log, Window(0.0, 2.25))
    assert (found.num_requests, found.num_finished) == (3, 2)
    # the first has sent tokens at 0.5, 1.0, 1.5, 2.0 and ends outside
    assert found.throughput.requests_per_s == pytest.approx(1 / 2.25)
    assert found.throughput.output_tokens_per_s == pytest.approx((4 + 1) / 2.25)
    assert found.throughput.prompt_tokens_per_s == pytest.approx(30 / 2.25)
    assert (found.ttft_s.count, found.ttft_s.mean, found.ttft_s.p50) == (2, 0.75, 0.75)
    assert (found.tpot_s.count, found.tpot_s.mean) == (1, 0.5)
    assert found.latency_s.mean == pytest.approx((2.5 + 1.0) / 2)
    assert found.normalised_s.mean == pytest.approx((2.5 / 5 + 1.0 / 1) / 2)
    assert found.time_s["queue_s"] == 0.5 and found.time_s["preempted_s"] == 0.0
    assert len(log.of_class(ServiceClass.BATCH)) == 1


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200))
def test_percentiles_are_those_of_the_standard_library(values: list[float]) -> None:
    found = spread([*values, math.nan])
    assert found.count == len(values) and found.mean == pytest.approx(statistics.fmean(values))
    if len(values) > 1:
        cuts = statistics.quantiles(values, n=100, method="inclusive")
        assert (found.p50, found.p90, found.p99) == pytest.approx((cuts[49], cuts[89], cuts[98]))


def test_no_requests_are_no_numbers() -> None:
    found = figures(RecordLog(("a",)).records(), Window(0.0, 1.0))
    assert found.throughput.requests_per_s == 0.0
    assert found.ttft_s.count == 0 and math.isnan(found.ttft_s.p99)


def test_weighting_by_rate() -> None:
    assert rate_weighted({"a": 3.0, "b": 1.0}, {"a": 2.0, "b": 2.0}) == 2.0
    assert rate_weighted({"a": 3.0, "b": 1.0}, {"a": 3.0, "b": 1.0}) == 2.5
    with pytest.raises(ValueError, match="nothing"):
        rate_weighted({}, {})
    with pytest.raises(KeyError):
        rate_weighted({}, {"a": 1.0})


def test_windows_hold_time() -> None:
    for start, end in ((1.0, 1.0), (2.0, 1.0), (0.0, math.inf), (math.nan, 1.0)):
        with pytest.raises(ValueError, match="holds no time"):
            Window(start, end)


@pytest.mark.parametrize(
    "record",
    [
        Record("a", 1.0, 0.5, 2.0, 1, 1),  # a token before the request
        Record("a", 0.0, 2.0, 1.0, 1, 2),  # the last before the first
        Record("a", 0.0, 1.0, 2.0, 1, 0),  # times without tokens
        Record("a", 0.0, None, None, 1, 3, ending=Ending.FAILED),  # tokens without times
        Record("a", 0.0, 1.0, None, 1, 1),
        Record("a", 0.0, None, None, 1, 0),  # finished without a token
        Record("a", 0.0, math.nan, 1.0, 1, 1),
    ],
)
def test_contradictions_are_refused(record: Record) -> None:
    with pytest.raises(ValueError, match="tokens need"):
        RecordLog().add(record)


def test_a_log_keeps_everything_over_many_chunks() -> None:
    log = RecordLog(("quiet",))
    for index in range(20_000):
        log.add(Record(f"m{index % 3}", float(index), index + 1.0, index + 2.0, index, 2))
        if index == 9_999:
            assert len(log.records()) == 10_000
    found = log.records()
    assert found.models == ("quiet", "m0", "m1", "m2")
    assert found.rows["arrival_s"].tolist() == list(range(20_000))
    assert found.of_model("m1").rows["prompt_tokens"].tolist() == list(range(1, 20_000, 3))
    assert len(found.of_model("quiet")) == 0
    assert found.rows.nbytes == 20_000 * ROW.itemsize == 20_000 * 86


def test_every_reason_of_the_engine_is_an_ending() -> None:
    assert set(ENDINGS) == set(FinishReason)
    served = {reason for reason, ending in ENDINGS.items() if ending is Ending.FINISHED}
    assert served == {FinishReason.STOP, FinishReason.LENGTH}
