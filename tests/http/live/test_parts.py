"""Timeline, events, recent requests and reports of the live view, against independent counts."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.core.request import ServiceClass, Slo
from muxcluster.core.served import (
    JobRecord,
    ModelStats,
    ServedModel,
    SharingStats,
    UnitState,
    UnitStats,
)
from muxcluster.http.live.events import EventLog
from muxcluster.http.live.snapshot import models_told, units_told
from muxcluster.http.live.timeline import BIN_S, NUM_BINS, ShareTimeline
from muxcluster.http.live.units import UnitHistory
from muxcluster.http.metrics.recent import WINDOW_S, EndedRequest, RecentRequests, Spread


def job(model: str, start_s: float, end_s: float, share: float = 0.5) -> JobRecord:
    return JobRecord(1, model, "decode", 0, share, start_s, end_s, 1, 1)


# Timeline

SPANS = st.tuples(
    st.sampled_from(["one", "two"]), st.floats(0, 100), st.floats(0, 40), st.floats(0.01, 1)
)


@given(st.lists(SPANS, max_size=20), st.floats(100, 140))
def test_bins_hold_the_sm_seconds_of_the_window(spans: list, now_s: float) -> None:
    jobs = [
        job(model, start, min(start + length, now_s), share)
        for model, start, length, share in spans
    ]
    timeline = ShareTimeline()
    for each in jobs:  # as reports come, one after the other
        timeline.add([each], now_s)
    told = timeline.told(now_s)
    end_s = now_s // BIN_S * BIN_S
    window = end_s - NUM_BINS * BIN_S, end_s
    for model in ("one", "two"):
        expected = sum(
            each.share * max(0.0, min(each.end_s, window[1]) - max(each.start_s, window[0]))
            for each in jobs
            if each.model == model
        )
        found = [series["shares"] for series in told["series"] if series["model"] == model]
        assert sum(map(sum, found)) * BIN_S == pytest.approx(expected, abs=5e-4 * NUM_BINS * BIN_S)


def test_a_bin_is_the_share_of_its_time_and_old_bins_go() -> None:
    timeline = ShareTimeline()
    timeline.add([job("one", 1.0, 1.125), job("two", 1.0, 1.25, 1.0)], 1.5)
    one, two = timeline.told(1.5)["series"]
    assert (one["shares"][-2:], two["shares"][-2:]) == ([0.25, 0.0], [1.0, 0.0])
    timeline.add([], 1.5 + NUM_BINS * BIN_S)
    assert timeline.told(1.5 + NUM_BINS * BIN_S)["series"] == []


# Events


def test_changes_are_told_once_and_new_units_by_their_state_alone() -> None:
    log = EventLog()
    one = {("u", "", "state"): "up", ("u", "m", "weights"): "resident"}
    log.note(one, 1.0)
    assert log.latest() == []
    for time_s in (2.0, 3.0):
        log.note(one | {("u", "m", "weights"): "parked"}, time_s)
    log.note({("v", "", "state"): "loading", ("v", "m", "weights"): "cold"}, 4.0)
    told = [(each.time_s, each.unit, each.what, each.before, each.after) for each in log.latest()]
    assert told == [
        (4.0, "v", "state", None, "loading"),
        (4.0, "u", "state", "up", None),
        (2.0, "u", "weights", "resident", "parked"),
    ]


# Requests


def ended(
    at_s: float,
    ttft_s: float | None = 0.1,
    tpot_s: float | None = 0.02,
    end: str = "stop",
    slo: Slo | None = None,
    kind: ServiceClass = ServiceClass.INTERACTIVE,
) -> EndedRequest:
    return EndedRequest(
        {}, f"r{at_s:g}", f"cmpl-r{at_s:g}", "m", kind, end, 0.0, at_s, ttft_s, tpot_s, slo
    )


@given(st.lists(st.floats(0, 10), min_size=1))
def test_quantiles_are_nearest_ranks(values: list[float]) -> None:
    spread = Spread.of(values)
    expected = np.quantile(values, [0.5, 0.99], method="inverted_cdf")
    assert [spread.p50_s, spread.p99_s] == pytest.approx(list(expected))


def test_figures_are_of_interactive_requests_in_the_window() -> None:
    slo = Slo(0.2, 0.05)
    recent = RecentRequests()
    recent.add(ended(1.0, ttft_s=99.0))
    in_window: Sequence[EndedRequest] = [
        ended(70.0, slo=slo),
        ended(71.0, ttft_s=0.3, slo=slo),  # late
        ended(72.0, tpot_s=0.06, slo=slo),  # slow
        ended(73.0, ttft_s=None, tpot_s=None, end="error", slo=slo),
        ended(74.0, ttft_s=9.0, end="abort", slo=slo),  # its client left: not judged
        ended(75.0, tpot_s=None),  # without targets
        ended(76.0, ttft_s=99.0, kind=ServiceClass.BATCH),
        ended(77.0, ttft_s=None, tpot_s=None, end="rejected", kind=ServiceClass.BATCH),
    ]
    for model, at_s in (("m", 69.0), ("m", 70.0), ("full", 71.0)):
        recent.refuse(model, 3, at_s)
    for each in in_window:
        recent.add(each)
    figures = recent.figures(70.0 + WINDOW_S)["m"]
    assert (figures.num_ended, figures.num_failed) == (6, 1)
    assert figures.attainment == pytest.approx(1 / 4)
    assert figures.ttft.p99_s == 9.0 and figures.tpot.p99_s == 0.06
    assert figures.num_refused == 1 + 3
    assert recent.figures(70.0 + WINDOW_S)["full"].num_refused == 3
    assert recent.figures(1000.0) == {}
    assert [each.ended_s for each in recent.find("cmpl-r71")] == [71.0]
    assert recent.find("r71") == recent.find("cmpl-r71") and recent.find("r") == []


def test_the_oldest_requests_are_forgotten() -> None:
    recent = RecentRequests(max_kept=2)
    for at_s in (1.0, 2.0, 3.0):
        recent.add(ended(at_s))
    assert recent.find("r1") == [] and len(recent.find("r3")) == 1


# Units


class Reports:
    """A backend's reports, each returned until it is replaced."""

    def __init__(self) -> None:
        self.now: list[UnitStats] = []

    def __call__(self) -> list[UnitStats]:
        return self.now


def report(now_s: float, tokens: int = 0, jobs: Sequence[JobRecord] = (), **more) -> UnitStats:
    models = (ModelStats("m", prompt_tokens=2 * tokens, output_tokens=tokens, num_running=3),)
    return UnitStats("u", now_s, 100, 80, models, tuple(jobs), **more)


def test_what_metrics_read_is_what_was_reported_and_jobs_count_once() -> None:
    read = Reports()
    history = UnitHistory(read)
    read.now = [report(10.0, 100, [job("m", 9.0, 9.25)])]
    assert [history.stats() for _ in range(3)] == [read.now] * 3
    read.now = [report(12.0, 130)]
    history.stats()
    (unit,) = history.units()
    assert unit.state == "up" and unit.stats is not None and unit.stats.jobs == ()
    assert sum(unit.shares["series"][0]["shares"]) == 0.5
    rates = unit.rates["m"]
    assert (rates.prompt_per_s, rates.output_per_s) == (30.0, 15.0)


def test_rates_are_of_the_last_seconds_and_a_restart_is_no_negative_one() -> None:
    read = Reports()
    history = UnitHistory(read)
    for second in range(20):
        read.now = [report(float(second), 10 * second if second < 14 else 140)]
        history.stats()
    assert history.units()[0].rates["m"].output_per_s == pytest.approx(0.0)
    for now_s, tokens in ((21.0, 3), (1.0, 5), (2.0, 9)):  # the same clock, then another one
        read.now = [report(now_s, tokens)]
        history.stats()
    assert history.units()[0].rates["m"].output_per_s == 4.0


def test_a_link_says_more_than_a_report_and_units_without_reports_are_there() -> None:
    links = {"u": "up", "v": "loading"}
    read = Reports()
    history = UnitHistory(read, lambda: links)
    read.now = [report(1.0)]
    history.stats()
    assert [(unit.unit_id, unit.state) for unit in history.units()] == [
        ("u", "up"),
        ("v", "loading"),
    ]
    links["u"] = "unreachable"
    history.stats()
    assert history.units()[0].state == "unreachable"
    (event,) = history.events()
    assert (event.unit, event.before, event.after) == ("u", "up", "unreachable")
    links.clear()
    read.now = []
    history.stats()
    assert history.units() == []


def test_without_a_link_the_report_says_it() -> None:
    read = Reports()
    history = UnitHistory(read)
    read.now = [report(1.0, state=UnitState.RECOVERING)]
    history.stats()
    assert history.units()[0].state == "recovering"


# Snapshot

SERVED = [ServedModel(name, "/m", 100, 100, (0,)) for name in ("m", "none")]


def test_a_model_is_where_its_best_living_unit_has_it() -> None:
    links = {"u": "up", "v": "up"}
    read = Reports()
    history = UnitHistory(read, lambda: links)
    away = UnitStats("v", 1.0, 10, 10, (ModelStats("m", weights="parked", num_waiting=2),))
    read.now = [report(1.0, sharing=SharingStats(False, 0.9)), away]
    history.stats()
    described = {"u": {"node": "a", "gpus": [0], "reason": None}, "w": {"phase": "loading"}}

    def told() -> list[dict]:
        return models_told(SERVED, units_told(history.units(), described), {})

    model, other = told()
    assert (model["state"], model["units"]) == ("resident", ["u", "v"])
    assert (model["running"], model["waiting"], model["targets"]) == (3, 2, None)
    assert (other["state"], other["running"]) == ("no unit", 0)
    units = units_told(history.units(), described)
    assert [unit["id"] for unit in units] == ["u", "v", "w"]
    assert (units[0]["node"], units[1]["node"], units[2]["state"]) == ("a", None, "loading")
    assert units[0]["sharing"]["gain"] == 0.9
    links["u"] = "unreachable"
    assert told()[0]["state"] == "parked"
    links["v"] = "stalled"
    assert told()[0]["state"] == "unreachable"
