"""Class, priority and targets as nobody should send them: refused by name, or harmless."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from muxcluster.core.request import ServiceClass, Slo
from muxcluster.http.app import create_app
from tests.http.fakes import FakeBackend

NUMBERS = ["-1", "0", "-0.0", "NaN", "Infinity", "-Infinity", "1e999", '"1"', "true", "[1]", "{}"]


@pytest.fixture
def backend(served: Any) -> FakeBackend:
    backend = FakeBackend([served])
    backend.script = lambda request: served.eos_token_ids
    return backend


@pytest.fixture(params=["chat/completions", "completions"])
def post(request: Any, backend: FakeBackend) -> Any:
    """(fields as JSON text) -> the answer."""
    prompt = '"prompt": "hi"' if request.param == "completions" else ""
    prompt = prompt or '"messages": [{"role": "user", "content": "hi"}]'
    with TestClient(create_app(backend)) as http:

        def send(fields: str) -> Any:
            content = f'{{"model": "tiny", {prompt}, {fields}}}'
            headers = {"content-type": "application/json"}
            return http.post(f"/v1/{request.param}", content=content, headers=headers)

        yield send


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("name", ["ttft", "tpot"])
def test_a_target_that_is_no_time_is_refused(
    post: Any, backend: FakeBackend, name: str, number: str
) -> None:
    other = "tpot" if name == "ttft" else "ttft"
    answer = post(f'"slo": {{"{other}": 1, "{name}": {number}}}')
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert not backend.requests


@pytest.mark.parametrize("slo", ["1", "[]", '{"ttft": 1, "tbt": 1}', '{"ttft": 1}', '"fast"'])
def test_half_a_target_or_another_thing_is_refused(
    post: Any, backend: FakeBackend, slo: str
) -> None:
    answer = post(f'"slo": {slo}')
    assert answer.status_code == 400, answer.text
    assert "slo" in answer.json()["error"]["param"]
    assert not backend.requests


@pytest.mark.parametrize("number", [5e-324, 1e-12, 1e300])
def test_a_target_of_any_positive_size_is_taken(
    post: Any, backend: FakeBackend, number: float
) -> None:
    assert post(f'"slo": {{"ttft": {number!r}, "tpot": {number!r}}}').status_code == 200
    assert backend.requests[0].slo == Slo(number, number)


@pytest.mark.parametrize("value", [str(2**63), str(-(2**63) - 1), "1e400", "NaN", '"high"', "1.5"])
def test_a_priority_that_is_no_64_bit_number_is_refused(
    post: Any, backend: FakeBackend, value: str
) -> None:
    answer = post(f'"priority": {value}')
    assert answer.status_code == 400, answer.text
    assert not backend.requests


@pytest.mark.parametrize("tier", ['"Flex"', '"batch"', "1", '""', '["flex"]'])
def test_an_unknown_tier_is_refused(post: Any, backend: FakeBackend, tier: str) -> None:
    answer = post(f'"service_tier": {tier}')
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "service_tier"
    assert not backend.requests


def test_a_batch_request_with_targets_is_a_batch_request(post: Any, backend: FakeBackend) -> None:
    """Its class tells who goes first; its targets bind nobody."""
    assert post('"service_tier": "flex", "slo": {"ttft": 0.001, "tpot": 0.001}').status_code == 200
    assert backend.requests[0].service_class is ServiceClass.BATCH
