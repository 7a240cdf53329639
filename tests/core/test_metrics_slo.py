"""Attainment and goodput, fairness, and averages of step functions, against plain loops."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.workload.metrics.fairness import fairness
from muxcluster.workload.metrics.records import Ending, Record, RecordLog, Records
from muxcluster.workload.metrics.series import StepSeries, step_means
from muxcluster.workload.metrics.slo import attainment_at_scales, attainment_of_targets, goodput


def served(latencies: list[float | None]) -> Records:
    """Requests of three tokens, the first after half the latency; None for one that failed."""
    log = RecordLog()
    for index, latency in enumerate(latencies):
        if latency is None:
            log.add(Record("a", index, None, None, 8, 0, ending=Ending.FAILED))
        else:
            log.add(Record("a", index, index + latency / 2, index + latency, 8, 3))
    return log.records()


latencies = st.lists(st.none() | st.integers(1, 400).map(lambda n: n / 8), min_size=1, max_size=40)


@given(latencies, st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 16))
def test_attainment_counts(found: list[float | None], scales: list[int], base: int) -> None:
    shares = attainment_at_scales(served(found), np.full(len(found), base / 4), scales)
    for scale, share in zip(scales, shares, strict=True):
        good = sum(latency is not None and latency <= scale * base / 4 for latency in found)
        assert share == good / len(found)
    by_scale = [share for _, share in sorted(zip(scales, shares, strict=True))]
    assert by_scale == sorted(by_scale)


def test_each_request_has_its_own_base() -> None:
    assert attainment_at_scales(served([1.0, 4.0]), [0.5, 2.0], [1.9, 2.0]).tolist() == [0.0, 1.0]
    with pytest.raises(ValueError, match="2 base latencies"):
        attainment_at_scales(served([1.0, 4.0]), [1.0], [1.0])
    with pytest.raises(ValueError, match="above 0"):
        attainment_at_scales(served([1.0]), [0.0], [1.0])


@given(latencies, st.integers(1, 400), st.integers(1, 400))
def test_targets_count(found: list[float | None], ttft: int, tpot: int) -> None:
    share = attainment_of_targets(served(found), ttft / 8, tpot / 8)
    # half the latency to the first token, a quarter to each of the two others
    done = [latency for latency in found if latency is not None]
    good = sum(one / 2 <= ttft / 8 and one / 4 <= tpot / 8 for one in done)
    assert share == good / len(found)


def test_one_token_keeps_any_tpot_and_targets_may_differ() -> None:
    log = RecordLog()
    log.add(Record("a", 0.0, 1.0, 1.0, 8, 1))
    assert attainment_of_targets(log.records(), 1.0, 0.0) == 1.0
    assert attainment_of_targets(served([1.0, 1.0]), [0.5, 0.4], math.inf) == 0.5
    assert math.isnan(attainment_of_targets(RecordLog().records(), 1.0, 1.0))
    assert math.isnan(attainment_at_scales(RecordLog().records(), [], [1.0])[0])


def test_goodput_by_hand() -> None:
    found = goodput([4.0, 1.0, 2.0], [0.97, 1.0, 1.0])
    assert (found.passing, found.is_capped) == (2.0, False)
    assert found.interpolated == pytest.approx(2.0 + 2.0 * 0.01 / 0.03)
    assert goodput([1.0, 2.0], [1.0, 0.99]).is_capped
    # what passes beyond a failing rate does not count
    assert goodput([1.0, 2.0, 3.0], [0.99, 0.5, 1.0]).passing == 1.0
    nothing = goodput([1.0, 2.0], [0.5, 0.4])
    assert (nothing.passing, nothing.interpolated, nothing.is_capped) == (0.0, 0.0, False)
    assert goodput([1.0, 2.0], [1.0, math.nan]).interpolated == 1.0
    for rates in ([], [1.0, 1.0]):
        with pytest.raises(ValueError, match="sweep"):
            goodput(rates, [1.0] * len(rates))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0.01, 0.99))
def test_goodput_lies_between_the_rates_around_the_level(shares: list[float], level: float) -> None:
    rates = [float(rate) for rate in range(1, len(shares) + 1)]
    found = goodput(rates, shares, level)
    failing = [rate for rate, share in zip(rates, shares, strict=True) if share < level]
    assert found.is_capped == (not failing)
    assert found.passing == (min(failing) - 1 if failing else rates[-1])
    assert found.passing <= found.interpolated <= (min(failing) if failing else rates[-1])


def test_fairness_by_hand() -> None:
    even = fairness({"a": 20.0, "b": 5.0}, {"a": 4.0, "b": 1.0})
    assert (even.max_over_min, even.jain, even.least_share) == (1.0, 1.0, 1.0)
    found = fairness({"a": 9.0, "b": 1.0}, {"a": 1.0, "b": 1.0})
    assert (found.max_over_min, found.least_model) == (9.0, "b")
    assert found.jain == pytest.approx(100 / (2 * 82)) and found.least_share == pytest.approx(0.2)
    starved = fairness({"a": 9.0, "b": 0.0}, {"a": 1.0, "b": 1.0})
    assert starved.max_over_min == math.inf and starved.jain == 0.5 and starved.least_share == 0.0
    for use, rates in (({"a": 0.0}, {"a": 1.0}), ({"a": 1.0}, {"a": 0.0}), ({}, {})):
        with pytest.raises(ValueError, match="rates above 0"):
            fairness(use, rates)


@given(st.dictionaries(st.text(max_size=2), st.integers(1, 99), min_size=1), st.integers(1, 50))
def test_fairness_knows_no_unit_of_use(use: dict[str, int], unit: int) -> None:
    rates = {name: 1.0 + len(name) for name in use}
    one, other = fairness(use, rates), fairness({k: unit * v for k, v in use.items()}, rates)
    assert one.jain == pytest.approx(other.jain) and one.max_over_min >= 1.0
    assert one.least_share == pytest.approx(other.least_share) and one.least_share <= 1.0 + 1e-12
    assert 1 / len(use) - 1e-12 <= one.jain <= 1.0 + 1e-12


changes = st.lists(st.tuples(st.integers(0, 20), st.integers(-5, 5)), max_size=20)


@given(changes, st.integers(1, 6))
def test_averages_of_steps_are_those_of_small_slices(
    gaps: list[tuple[int, int]], bin_ticks: int
) -> None:
    times, now = [], 0
    for gap, _ in gaps:
        now += gap
        times.append(now)
    values = [value for _, value in gaps]
    end = now + 2 * bin_ticks
    slices = [0] * end
    for index, time in enumerate(times):
        until = times[index + 1] if index + 1 < len(times) else end
        slices[time:until] = [values[index]] * (until - time)
    edges = list(range(0, end + 1, bin_ticks))
    wanted = [sum(slices[a:b]) / bin_ticks for a, b in zip(edges, edges[1:], strict=False)]
    series = StepSeries(bin_ticks / 4, start_s=10.0)
    for time, value in zip(times, values, strict=True):
        series.set(10.0 + time / 4, value)
    assert step_means(times, values, edges) == pytest.approx(wanted)
    assert series.means(10.0 + end / 4)[: len(wanted)] == pytest.approx(wanted)
    whole = sum(slices[: edges[-1]]) / edges[-1]
    assert series.mean(10.0, 10.0 + edges[-1] / 4) == pytest.approx(whole)


def test_a_series_adds_and_refuses_to_run_back() -> None:
    series = StepSeries(1.0)
    series.add(0.5, 2.0)
    series.add(1.5, 1.0)
    assert series.means(4.0).tolist() == [1.0, 2.5, 3.0, 3.0]
    assert series.mean(1.0, 3.0) == 2.75
    with pytest.raises(ValueError, match="runs back"):
        series.set(3.9, 1.0)
    with pytest.raises(ValueError, match="no values"):
        series.mean(3.0, 4.5)
    with pytest.raises(ValueError, match="hold no time"):
        StepSeries(0.0)
    with pytest.raises(ValueError, match="descend"):
        step_means([1.0, 0.0], [1.0, 1.0], [0.0, 1.0])
