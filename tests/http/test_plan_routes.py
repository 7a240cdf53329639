"""GET and POST /v1/cluster/plan: what is passed on, and what is refused to whom."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from starlette.testclient import TestClient

from muxcluster.core.errors import InvalidValue, NotReady, Overloaded
from muxcluster.http.app import AppParts, create_app
from muxcluster.http.settings import ApiSettings
from tests.http.fakes import FakeBackend

PLAN = "/v1/cluster/plan"


class ScriptedPlans:
    def __init__(self) -> None:
        self.error: Exception | None = None

    async def plan(self) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        return {"plan": "in force"}

    async def what_if(self, changes: Sequence[str]) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        return {"plan": list(changes)}


@pytest.fixture
def plans() -> ScriptedPlans:
    return ScriptedPlans()


@pytest.fixture
def http(backend: FakeBackend, plans: ScriptedPlans) -> Iterator[TestClient]:
    with TestClient(create_app(backend, parts=AppParts(plans=plans))) as client:
        yield client


def test_plans_are_told(http: TestClient) -> None:
    assert http.get(PLAN).json() == {"plan": "in force"}
    changes = ["rate:a=x2", "gpus:n=4"]
    assert http.post(PLAN, json={"changes": changes}).json() == {"plan": changes}
    assert http.get("/v1/cluster/live").json()["has_plan"] is True


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "changes"),
        ({"changes": []}, "changes"),
        ({"changes": "rate:a=2"}, "changes"),
        ({"changes": [1]}, "changes[0]"),
        ({"changes": [""]}, "changes[0]"),
        ({"changes": ["x" * 401]}, "changes[0]"),
        ({"changes": ["rate:a=2"] * 101}, "changes"),
        ({"changes": ["rate:a=2"], "apply": True}, "apply"),
    ],
)
def test_wrong_bodies_are_refused(http: TestClient, body: dict[str, Any], param: str) -> None:
    answer = http.post(PLAN, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidValue("changes rate:x=2: no model 'x'", "changes"), 400),
        (Overloaded("another what-if plan is being made", retry_after_s=5), 429),
        (NotReady("there is no plan yet", retry_after_s=5), 503),
    ],
)
def test_refusals_say_why(
    http: TestClient, plans: ScriptedPlans, error: Exception, status: int
) -> None:
    plans.error = error
    answer = http.post(PLAN, json={"changes": ["rate:x=2"]})
    assert (answer.status_code, answer.json()["error"]["message"]) == (status, str(error))
    assert answer.headers.get("retry-after") == (None if status == 400 else "5")


def test_a_server_without_a_plan_says_so(backend: FakeBackend) -> None:
    with TestClient(create_app(backend)) as http:
        for answer in (http.get(PLAN), http.post(PLAN, json={"changes": ["rate:a=2"]})):
            assert answer.status_code == 404
            assert "muxcluster serve" in answer.json()["error"]["message"]


def test_the_admin_key_alone_may_ask(backend: FakeBackend, plans: ScriptedPlans) -> None:
    settings = ApiSettings(api_key="client", admin_key="admin")
    with TestClient(create_app(backend, settings, parts=AppParts(plans=plans))) as http:
        for key, status in ((None, 401), ("client", 403), ("admin", 200)):
            headers = {} if key is None else {"Authorization": f"Bearer {key}"}
            asked = {"changes": ["rate:a=2"]}
            assert http.get(PLAN, headers=headers).status_code == status
            assert http.post(PLAN, json=asked, headers=headers).status_code == status
