"""A unit's wait as its reports tell it: what waits, how fast it goes, what was sent since."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxcluster.core.served import JobRecord, ModelStats, UnitStats
from muxcluster.router.unit_load import UNKNOWN_TOKEN_S, LoadMeter


def report(now_s: float, *models: ModelStats, jobs: tuple[JobRecord, ...] = ()) -> UnitStats:
    return UnitStats("u", now_s, 100, 100, models, jobs)


def prefill(seconds: float, num_tokens: int, model: str = "m", phase: str = "prefill") -> JobRecord:
    return JobRecord(1, model, phase, 0, 1.0, 10.0, 10.0 + seconds, 1, num_tokens)


def test_an_unknown_unit_has_no_wait() -> None:
    load = LoadMeter()
    assert (
        load.wait_s("m", 0.0) == 0.0
        and load.token_s("m") == UNKNOWN_TOKEN_S
        and load.num_requests() == 0
    )


def test_a_token_takes_as_long_as_in_the_prefill_jobs_of_its_model() -> None:
    load = LoadMeter()
    jobs = (prefill(0.2, 100), prefill(9.0, 1, phase="decode"), prefill(50.0, 10, "other"))
    load.hear(report(1.0, ModelStats("m", waiting_tokens=300), jobs=jobs), 0.0)
    assert load.token_s("m") == pytest.approx(0.002)
    assert load.wait_s("m", 0.0) == pytest.approx(0.6)


def test_what_was_sent_since_the_report_waits_too_and_is_not_counted_twice() -> None:
    load = LoadMeter()
    waiting = ModelStats("m", 2, 1, waiting_tokens=100)
    load.send("m", 100, 5.0)
    assert (
        load.wait_s("m", 5.0) == pytest.approx(100 * UNKNOWN_TOKEN_S) and load.num_requests() == 1
    )
    load.send("m", 50, 6.001)
    load.hear(report(1.0, waiting), 6.0)
    assert load.wait_s("m", 6.001) == pytest.approx(150 * UNKNOWN_TOKEN_S - 0.001)
    assert load.num_requests() == 4
    # the same report, read again later
    load.hear(report(1.0, waiting), 6.5)
    assert load.wait_s("m", 6.001) == pytest.approx(150 * UNKNOWN_TOKEN_S - 0.001)
    load.hear(report(1.5, ModelStats("m")), 6.5)
    assert load.wait_s("m", 6.5) == 0.0 and load.num_requests() == 0


def test_between_reports_what_waits_is_worked_off() -> None:
    load = LoadMeter()
    load.hear(report(1.0, ModelStats("m", waiting_tokens=100), jobs=(prefill(1.0, 100),)), 5.0)
    assert load.wait_s("m", 5.4) == pytest.approx(0.6)
    load.send("m", 50, 5.4)
    assert load.wait_s("m", 5.4) == pytest.approx(1.1)
    assert load.wait_s("m", 7.0) == 0.0
    load.send("m", 50, 7.0)
    assert load.wait_s("m", 7.1) == pytest.approx(0.4)


def test_a_queue_waits_at_the_speed_at_which_it_is_worked_off() -> None:
    load = LoadMeter()
    # prefill alone would be a hundred times as fast: decodes take the rest of the time
    for i in range(4):
        model = ModelStats("m", prompt_tokens=100 * i, waiting_tokens=1000)
        load.hear(report(float(i), model, jobs=(prefill(0.01, 100),)), 0.0)
    assert load.wait_s("m", 0.0) == pytest.approx(1000 / 100)


def test_a_queue_that_stands_still_is_a_long_wait() -> None:
    load = LoadMeter()
    for i in range(4):
        load.hear(report(float(i), ModelStats("m", waiting_tokens=500)), float(i))
    assert load.wait_s("m", 0.0) > 500


def test_the_time_in_which_nothing_waited_says_nothing() -> None:
    load = LoadMeter()
    for i in range(4):
        load.hear(report(100.0 * i, ModelStats("m", prompt_tokens=10 * i)), float(i))
    load.send("m", 100, 99.0)
    assert load.wait_s("m", 0.0) == pytest.approx(100 * UNKNOWN_TOKEN_S)


counts = st.integers(0, 10_000)


@given(st.lists(st.tuples(st.floats(0.0, 100.0), counts, counts, st.booleans()), max_size=20))
def test_whatever_comes_the_wait_is_a_finite_number(
    told: list[tuple[float, int, int, bool]],
) -> None:
    """Clocks that go back and counters that start again are a unit's successor."""
    load = LoadMeter()
    for now_s, waiting, done, is_sent in told:
        if is_sent:
            load.send("m", waiting, now_s)
        else:
            model = ModelStats("m", prompt_tokens=done, waiting_tokens=waiting)
            load.hear(report(now_s, model, jobs=(prefill(0.1, 10),)), now_s)
        assert 0.0 <= load.wait_s("m", 0.0) < 1e9 and load.token_s("m") > 0.0


def test_a_request_to_a_parked_model_waits_for_its_weights_first() -> None:
    meter = LoadMeter()
    meter.hear(UnitStats("u", 1.0, 10, 10, (ModelStats("m", expected_wait_s=2.0),)), 5.0)
    assert meter.wait_s("m", 5.0) == pytest.approx(2.0)
    assert meter.wait_s("m", 6.5) == pytest.approx(0.5)
