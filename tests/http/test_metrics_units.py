"""What units report of shared blocks shows up under one name each, per model and unit."""

from dataclasses import replace

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from muxcluster.core.served import JobRecord, ModelStats, UnitStats
from muxcluster.http.metrics.units import UnitMetrics

SHARING = ModelStats(
    "chat",
    num_lent_columns=3,
    num_saved_slots=40,
    num_restored_slots=38,
    num_recomputed_tokens=7,
)


def scraped(units: list[UnitStats]) -> dict[tuple[str, str, str], float]:
    registry = CollectorRegistry()
    UnitMetrics(registry, lambda: units)
    return {
        (sample.name, sample.labels["model_name"], sample.labels["engine"]): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
        if {"model_name", "engine"} == sample.labels.keys()
    }


def test_counters_of_shared_blocks() -> None:
    again = replace(SHARING, num_lent_columns=9)
    units = [
        UnitStats("u0", 1.0, 10, 10, (SHARING, ModelStats("code"))),
        UnitStats("u1", 1.0, 10, 10, (again,)),
    ]
    values = scraped(units)
    for name, value in (
        ("lent_columns", 3),
        ("saved_slots", 40),
        ("restored_slots", 38),
        ("recomputed_tokens", 7),
    ):
        assert values[f"muxcluster:{name}_total", "chat", "u0"] == value
        assert values[f"muxcluster:{name}_total", "code", "u0"] == 0
    assert values["muxcluster:lent_columns_total", "chat", "u1"] == 9


def test_a_unit_that_is_gone_reports_no_state_and_its_jobs_stay_counted() -> None:
    job = JobRecord(1, "chat", "prefill", 0, 1.0, 2.0, 2.5, 1, 64)
    gone = UnitStats("u0", 1.0, 10, 10, (SHARING,), (job,))
    units = [gone, UnitStats("u1", 1.0, 10, 10, (SHARING,))]
    registry = CollectorRegistry()
    metrics = UnitMetrics(registry, lambda: units)
    metrics.observe()
    units.remove(gone)
    text = generate_latest(registry).decode()
    assert 'muxcluster:lent_columns_total{engine="u1"' in text
    assert 'muxcluster:lent_columns_total{engine="u0"' not in text
    assert 'muxcluster:jobs_total{engine="u0",model_name="chat",phase="prefill"} 1.0' in text


def test_where_weights_are_is_told_in_vllm_s_words() -> None:
    awake = ModelStats("chat", num_wakes=2, num_parks=1, waking_s=1.5, resident_bytes=100)
    awake = replace(awake, num_wakes_ahead=2, num_wakes_ahead_used=1)
    parked = ModelStats("code", weights="parked", expected_wait_s=0.75)
    waking, parking = ModelStats("rare", weights="waking"), ModelStats("old", weights="parking")
    units = [UnitStats("u0", 1.0, 10, 10, (awake, parked, waking, parking))]
    registry = CollectorRegistry()
    UnitMetrics(registry, lambda: units)
    states = {
        (sample.labels["model_name"], sample.labels["sleep_state"]): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
        if sample.name == "vllm:engine_sleep_state"
    }
    ones = {"chat": "awake", "code": "weights_offloaded", "rare": "weights_offloaded"}
    ones["old"] = "awake"
    assert len(states) == 12
    assert {model: state for (model, state), value in states.items() if value} == ones
    values = scraped(units)
    assert values["muxcluster:wakes_total", "chat", "u0"] == 2
    assert values["muxcluster:parks_total", "chat", "u0"] == 1
    assert values["muxcluster:wakes_ahead_total", "chat", "u0"] == 2
    assert values["muxcluster:wakes_ahead_used_total", "chat", "u0"] == 1
    assert values["muxcluster:waking_seconds_total", "chat", "u0"] == 1.5
    assert values["muxcluster:resident_bytes", "chat", "u0"] == 100
    assert values["muxcluster:expected_wait_seconds", "code", "u0"] == 0.75
