"""Conditions in /ready, metrics, events and the live view: which trouble is told from which."""

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from muxcluster.core.served import ModelStats, ServedModel, UnitStats
from muxcluster.http.app import create_app
from muxcluster.http.live import conditions as conditions_module
from muxcluster.http.live.conditions import STUCK_S, Condition, Conditions, findings, summary
from muxcluster.http.live.units import UnitHistory, UnitSeen
from muxcluster.http.metrics.recent import RecentRequests
from muxcluster.http.settings import ApiSettings, QueueLimits
from muxcluster.router.unit_link import LinkState
from tests.http.fakes import FakeBackend, wait_until

TINY = ServedModel("tiny", "/nowhere", 256, 300, (0,))
TEXT = {"model": "tiny", "prompt": "a"}


def unit(state: str = "up", *, stuck_s: float = 0.0, **model: object) -> UnitSeen:
    stats = UnitStats("u", 1.0, 10, 10, (replace(ModelStats("tiny"), **model),))
    return UnitSeen("u", state, 0.1, stats, stuck_s=stuck_s)


def names(*units: UnitSeen, refused: dict[str, int] | None = None) -> str:
    return summary(findings(units, [TINY], refused or {}))


def test_nothing_is_wrong() -> None:
    assert names(unit()) == names(unit(num_running=5, num_waiting=3)) == "ok"


@pytest.mark.parametrize("state", [each for each in LinkState if each is not LinkState.UP])
def test_a_unit_that_is_not_up(state: LinkState) -> None:
    other = UnitSeen("v", "up", 0.1, UnitStats("v", 1.0, 1, 1, (ModelStats("tiny"),)))
    is_silent = state in (LinkState.SILENT, LinkState.STALLED)
    expected = "stalled" if is_silent else "degraded"
    assert names(unit(state), other) == expected
    # of the only unit its model is missed, too
    alone = findings([unit(state)], [TINY], {})
    assert [each.model for each in alone] == ["", "tiny"]
    assert summary(alone) == ("stalled, degraded" if is_silent else "degraded")


def test_a_unit_that_computes_nothing_is_stalled() -> None:
    assert names(unit(stuck_s=STUCK_S - 1)) == "ok"
    assert names(unit(stuck_s=STUCK_S + 1)) == "stalled"


def test_a_model_without_a_unit_and_one_whose_weights_are_awaited() -> None:
    assert [each.model for each in findings([], [TINY], {})] == ["tiny"]
    assert names(unit(weights="parked")) == "ok"
    for weights in ("parked", "waking", "cold", "parking"):
        assert names(unit(weights=weights, num_waiting=1)) == "waking"
    there = UnitSeen("v", "up", 0.1, UnitStats("v", 1.0, 1, 1, (ModelStats("tiny"),)))
    assert names(unit(weights="parked", num_waiting=1), there) == "ok"


def test_an_adapter_is_told_by_its_base() -> None:
    """Units report no adapters."""
    served = [TINY, replace(TINY, name="sql", base="tiny")]
    assert findings([unit()], served, {}) == []
    assert [each.model for each in findings([], served, {})] == ["tiny"]


def test_the_worst_comes_first() -> None:
    found = findings([unit("failed"), unit("stalled")], [TINY], {"tiny": 3, "": 1})
    kinds = [each.condition for each in found]
    assert kinds == sorted(kinds, key=list(Condition).index)
    assert summary(found) == "stalled, degraded, overloaded"
    assert found[-1].text == "1 requests refused within 30 s"


def test_progress_is_measured_between_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time without tokens counts while requests run, and not while none do."""
    now = 100.0
    monkeypatch.setattr("muxcluster.http.live.units.time.monotonic", lambda: now)
    reports: list[UnitStats] = []
    history = UnitHistory(lambda: reports[-1:])

    def after(seconds: float, **model: object) -> float:
        nonlocal now
        now += seconds
        stats = replace(ModelStats("tiny"), **model)
        reports.append(UnitStats("u", now, 1, 1, (stats,)))
        history.stats()
        (seen,) = history.seen()
        return seen.stuck_s

    assert after(0.0, num_running=1) == 0.0
    assert after(50.0, num_running=1) == 50.0
    assert after(50.0, num_running=1) == 100.0
    assert after(1.0, num_running=1, prompt_tokens=5) == 0.0
    assert after(50.0, num_running=1, prompt_tokens=5, num_waiting=9) == 50.0
    assert after(1.0, prompt_tokens=5) == 0.0
    assert after(50.0, prompt_tokens=5) == 0.0
    # requests that lent their blocks wait for others, and are counted as running
    assert after(50.0, prompt_tokens=5, num_running=2, num_lent=2) == 0.0


def test_changes_are_events_and_waking_is_none() -> None:
    units = [unit()]
    conditions = Conditions(
        CollectorRegistry(), lambda: units, lambda: [TINY], RecentRequests().refused
    )
    conditions.observe()
    for state in (
        unit("stalled"),
        unit("stalled"),
        unit(weights="waking", num_waiting=1),
        unit("failed"),
    ):
        units[:] = [state]
        conditions.observe()
    told = [(each.before, each.after) for each in conditions.events()]
    assert told == [("ok", "degraded"), ("stalled, degraded", "ok"), ("ok", "stalled, degraded")]
    assert {(each.unit, each.model, each.what) for each in conditions.events()} == {
        ("", "", "state")
    }


def samples(http: TestClient) -> dict[tuple[str, str], float]:
    """muxcluster:condition and unit_up, by name and label."""
    text = http.get("/metrics").text
    return {
        (each.name, next(iter(each.labels.values()))): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
        if family.name in ("muxcluster:condition", "muxcluster:unit_up")
    }


def test_ready_says_why_not(backend: FakeBackend) -> None:
    with TestClient(create_app(backend)) as http:
        backend.is_ready = False
        assert code_of(http, "/ready") == "model_loading"
        backend.is_draining = True
        assert code_of(http, "/ready") == "server_shutting_down"
        assert http.get("/health").status_code == 200
        backend.is_draining, backend.is_healthy = False, False
        assert code_of(http, "/ready") == code_of(http, "/health") == "stalled"


def code_of(http: TestClient, path: str) -> str:
    answer = http.get(path)
    assert answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1
    return str(answer.json()["error"]["code"])


def test_refused_requests_are_told_everywhere(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muxcluster.http.live.units.SILENT_S", 1e9)
    app = create_app(backend, ApiSettings(queues=QueueLimits(open_calls=0)))
    with TestClient(app) as http:
        assert wait_until(lambda: http.get("/ready").json()["conditions"] == [])
        assert http.post("/v1/completions", json=TEXT).status_code == 429
        assert http.get("/ready").json()["conditions"] == ["overloaded"]
        assert samples(http)["muxcluster:condition", "overloaded"] == 1
        assert samples(http)["muxcluster:condition", "stalled"] == 0

        def told() -> bool:
            live = http.get("/v1/cluster/live").json()
            found = [each["condition"] for each in live["conditions"]]
            events = [each["after"] for each in live["events"] if not each["unit"]]
            return found == ["overloaded"] and "overloaded" in events

        assert wait_until(told)
        monkeypatch.setattr(conditions_module, "OVERLOAD_S", 0.0)
        assert http.get("/ready").json()["conditions"] == []
