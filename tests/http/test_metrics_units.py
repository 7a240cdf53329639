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
