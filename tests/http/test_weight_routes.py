"""An operator's routes for weights, and requests whose weights come too late."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from muxcluster.core.errors import MoveRefused
from muxcluster.core.residency import WeightOrder
from muxcluster.core.served import ModelStats, ServedModel
from muxcluster.http.app import create_app
from muxcluster.http.settings import ApiSettings
from tests.http.fakes import FakeBackend, wait_until

ADMIN = {"Authorization": "Bearer admin"}
TEXT = {"model": "tiny", "prompt": "hi"}
HELD, PARKED = WeightOrder.HOLD, WeightOrder.PARK


@pytest.fixture
def backend(backend: FakeBackend) -> FakeBackend:
    """Two units with the model resident; orders are followed at once."""
    units = {unit: ModelStats("tiny") for unit in ("u-0", "u-1")}
    backend.reports["tiny"] = units

    def follow(model: str, order: WeightOrder) -> None:
        weights = "parked" if order in (HELD, PARKED) else "resident"
        kept = "" if order in (WeightOrder.WAKE, WeightOrder.UNPIN) else order.value
        for unit, stats in units.items():
            units[unit] = replace(stats, weights=weights, order=kept)

    backend.on_order = follow
    return backend


@pytest.fixture
def http(backend: FakeBackend) -> Iterator[TestClient]:
    settings = ApiSettings(api_key="client", admin_key="admin", request_timeout_s=5.0)
    with TestClient(create_app(backend, settings)) as client:
        yield client


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/sleep?level=1&model=tiny"),
        ("POST", "/wake_up?model=tiny"),
        ("POST", "/pin?model=tiny"),
        ("POST", "/unpin?model=tiny"),
        ("GET", "/is_sleeping?model=tiny"),
    ],
)
def test_only_the_admin_key_moves_weights(http, backend, served, method: str, path: str) -> None:
    client = {"Authorization": "Bearer client"}
    assert http.request(method, path).status_code == 401
    refused = http.request(method, path, headers=client)
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "permission_denied"
    assert backend.orders == []
    assert http.request(method, path, headers=ADMIN).status_code == 200
    for settings in (ApiSettings(), ApiSettings(api_key="client")):
        with TestClient(create_app(backend, settings)) as other:
            for headers in (client, ADMIN):
                given = other.request(method, path, headers=headers)
                assert given.status_code == 403
                assert "server.admin_key is not set" in given.json()["error"]["message"]


def test_the_admin_key_is_good_for_all_routes_and_needs_no_other(http, backend, says) -> None:
    says("ok")
    assert http.post("/v1/completions", json=TEXT, headers=ADMIN).status_code == 200
    with TestClient(create_app(backend, ApiSettings(admin_key="admin"))) as other:
        assert other.post("/v1/completions", json=TEXT).status_code == 200
        assert other.post("/sleep?model=tiny").status_code == 401


def test_a_model_sleeps_until_it_is_woken(http, backend) -> None:
    def is_sleeping() -> bool:
        return http.get("/is_sleeping", headers=ADMIN).json()["is_sleeping"]

    assert not is_sleeping()
    slept = http.post("/sleep?level=1&model=tiny", headers=ADMIN)
    held = {"weights": "parked", "order": "hold"}
    assert slept.json() == {"model": "tiny", "units": {"u-0": held, "u-1": held}}
    assert is_sleeping()
    woken = http.post("/wake_up?model=tiny&unit=u-1", headers=ADMIN)
    assert woken.json()["units"]["u-1"] == {"weights": "resident", "order": None}
    assert not is_sleeping()
    http.post("/sleep?hold=false", headers=ADMIN)
    orders = [("tiny", HELD, None), ("tiny", WeightOrder.WAKE, "u-1"), ("tiny", PARKED, None)]
    assert backend.orders == orders


@pytest.mark.parametrize(
    ("query", "code", "status"),
    [
        ("level=2&model=tiny", "invalid_value", 400),
        ("level=x&model=tiny", "invalid_value", 400),
        ("model=tiny&tags=weights", "unsupported_parameter", 400),
        ("model=other", "model_not_found", 404),
    ],
)
def test_a_wrong_query_is_refused(http, backend, query: str, code: str, status: int) -> None:
    answer = http.post(f"/sleep?{query}", headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert backend.orders == []


def test_a_model_must_be_named_where_there_are_several(http, backend, served) -> None:
    backend.served.append(replace(served, name="other"))
    answer = http.post("/sleep", headers=ADMIN)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "model"


def test_what_the_unit_refuses_is_the_clients_error(http, backend) -> None:
    def refuse(model: str, order: WeightOrder) -> None:
        raise MoveRefused("all weights of its unit stay resident")

    backend.on_order = refuse
    answer = http.post("/sleep?model=tiny", headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "move_refused")


def test_a_move_that_takes_too_long_goes_on(http, backend) -> None:
    units = backend.reports["tiny"]
    backend.on_order = lambda model, order: units.update({"u-0": ModelStats("tiny", order=order)})
    headers = {**ADMIN, "X-Request-Timeout-Seconds": "0.1"}
    answer = http.post("/sleep?model=tiny", headers=headers)
    assert answer.status_code == 408
    assert "hold of tiny is not done within 0.1 s; it goes on" in answer.json()["error"]["message"]


def test_a_wake_that_cannot_work_is_told(http, backend) -> None:
    units = backend.reports["tiny"]

    def fail(model: str, order: WeightOrder) -> None:
        units["u-0"] = ModelStats("tiny", weights="cold")

    backend.on_order = fail
    answer = http.post("/wake_up?model=tiny", headers=ADMIN)
    assert answer.status_code == 500
    assert "cannot be loaded" in answer.json()["error"]["message"]


# Requests


def report(backend: FakeBackend, *units: ModelStats) -> None:
    backend.reports["tiny"] = {f"u-{i}": stats for i, stats in enumerate(units)}


def ask(http: TestClient, limit_s: float):
    headers = {"Authorization": "Bearer client", "X-Request-Timeout-Seconds": str(limit_s)}
    return http.post("/v1/completions", json=TEXT, headers=headers)


def away(wait_s: float, order: str = "") -> ModelStats:
    return ModelStats("tiny", weights="parked", expected_wait_s=wait_s, order=order)


def test_weights_that_come_after_the_limit_are_told_at_once_and_asked_for(
    http, backend, says
) -> None:
    says("ok")
    report(backend, away(7.2), away(3.3))
    refused = ask(http, 2.0)
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "4"
    assert refused.json()["error"]["code"] == "model_parked"
    assert wait_until(lambda: backend.orders == [("tiny", WeightOrder.EXPECT, "u-1")])
    assert backend.requests == []
    report(backend, away(7.2), away(3.3, "wake"))
    assert ask(http, 2.0).status_code == 503
    assert len(backend.orders) == 1  # it is asked for already


def test_weights_that_come_in_time_or_are_there_are_waited_for(http, backend, says) -> None:
    says("ok")
    for units in ([away(3.0)], [away(60.0), ModelStats("tiny")], []):
        report(backend, *units)
        assert ask(http, 4.0).status_code == 200
    assert len(backend.requests) == 3 and backend.orders == []


def test_requests_to_a_held_model_are_refused_unless_a_unit_has_it(http, backend, says) -> None:
    says("ok")
    report(backend, away(0.1, "hold"), ModelStats("tiny", order="hold"))
    refused = ask(http, 4.0)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_held")
    assert refused.headers["retry-after"] == "60"
    report(backend, away(0.1, "hold"), away(0.1))
    assert ask(http, 4.0).status_code == 200
    assert backend.orders == []


def test_metrics_count_them_as_refused(http, backend, says, served: ServedModel) -> None:
    report(backend, away(9.0))
    ask(http, 1.0)
    scraped = http.get("/metrics", headers=ADMIN).text
    line = next(
        each for each in scraped.splitlines() if each.startswith("vllm:admission_rejections_total{")
    )
    assert line.endswith(" 1.0")
