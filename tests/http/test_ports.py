"""Operators' routes at a port of their own, and what the audit log says of their acts."""

import asyncio
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from starlette.testclient import TestClient

from muxcluster.cluster.ingress.serve_app import settings_of
from muxcluster.config.load import load_config
from muxcluster.core.errors import ConfigError
from muxcluster.core.inputs.web_url import HttpAddress
from muxcluster.core.served import ServedModel
from muxcluster.http.app import create_app
from muxcluster.http.server import audit
from muxcluster.http.server.middleware import (
    ADMIN_ROUTES,
    HEALTH_ROUTES,
    OVERVIEWS,
    PAGE_ROUTES,
)
from muxcluster.http.server.ports import Port, through
from muxcluster.http.settings import ApiSettings
from muxcluster.tenants.keys import TenantKey
from tests.http.clusters import Cluster, run
from tests.http.fakes import FakeBackend
from tests.http.listeners import free_port

OPERATORS = (*ADMIN_ROUTES, *PAGE_ROUTES, *OVERVIEWS, "/v1/cluster/live")
CLIENTS = ("/v1/models", "/version", "/v1/batches", "/openapi.json", "/nowhere")
ADMIN = {"Authorization": "Bearer admin"}


def statuses(backend: FakeBackend, port: Port, path: str) -> tuple[int, str]:
    """Status and error of GET, with the admin's key."""
    app = create_app(backend, ApiSettings(api_key="client", admin_key="admin"))
    with TestClient(through(port, app), headers=ADMIN) as http:
        answer = http.get(path)
    return answer.status_code, answer.text


@pytest.mark.parametrize("path", sorted(OPERATORS))
def test_operators_routes_are_at_their_port_alone(backend: FakeBackend, path: str) -> None:
    status, text = statuses(backend, Port.CLIENTS, path)
    assert status == 404 and "port of operators (server.admin)" in text
    for port in (Port.ADMIN, Port.ALL):
        assert "no such route at this port" not in statuses(backend, port, path)[1]


@pytest.mark.parametrize("path", sorted(CLIENTS))
def test_all_others_are_at_the_other(backend: FakeBackend, path: str) -> None:
    status, text = statuses(backend, Port.ADMIN, path)
    assert status == 404 and "port of clients" in text
    for port in (Port.CLIENTS, Port.ALL):
        assert "no such route at this port" not in statuses(backend, port, path)[1]


@pytest.mark.parametrize("path", sorted(HEALTH_ROUTES))
def test_probes_are_at_both(backend: FakeBackend, path: str) -> None:
    for port in Port:
        assert statuses(backend, port, path)[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        *("//metrics", "/metrics/", "/v1/../metrics", "/%6detrics", "/metrics%00", "/METRICS"),
        *("/metrics;x", "/v1/models/../../metrics", "/v1/cluster%2flive", "/v1/cluster/./live"),
    ],
)
def test_no_spelling_leads_to_the_other_port(backend: FakeBackend, path: str) -> None:
    assert statuses(backend, Port.CLIENTS, path)[0] == 404


def test_an_ingress_listens_at_both(served: ServedModel) -> None:
    admin = HttpAddress("127.0.0.1", free_port())

    async def work(cluster: Cluster) -> None:
        unit = cluster.start("u-0", "tiny")
        cluster.serve(unit, tiny=("u-0",))
        await cluster.ready()
        assert len(await cluster.text("tiny", "hello", 5)) == 5
        assert await cluster.status("/metrics") == 404
        async with httpx.AsyncClient(base_url=f"http://{admin.host}:{admin.port}") as http:
            metrics = await http.get("/metrics")
            assert metrics.status_code == 200
            assert 'vllm:request_success_total{engine="0"' in metrics.text
            assert (await http.get("/dashboard")).status_code == 200
            assert (await http.get("/v1/models")).status_code == 404
            assert (await http.get("/-/healthz")).status_code == 200

    run((served,), work, admin=admin)


def test_the_file_names_the_port(tmp_path: Path) -> None:
    file = tmp_path / "muxcluster.yaml"
    models = [{"name": "tiny", "shape": "llama-2-7b"}]
    file.write_text(yaml.safe_dump({"models": models, "server": {"admin": {"port": 8001}}}))
    assert settings_of(load_config(file)).admin == HttpAddress("127.0.0.1", 8001)
    for hosts in (("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("10.0.0.1", "::")):
        own, admin = hosts
        server = {"host": own, "admin": {"host": admin, "port": 8000}}
        file.write_text(yaml.safe_dump({"models": models, "server": server}))
        with pytest.raises(ConfigError, match="same host and port"):
            load_config(file)


@pytest.mark.parametrize(
    ("one", "other", "is_met"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("0.0.0.0", "127.0.0.1", True),
        ("::", "10.0.0.1", True),
        ("0::0", "::1", True),
        ("0.0.0.0", "::", True),
        ("", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("localhost", "10.0.0.1", False),
    ],
)
def test_addresses_that_overlap(one: str, other: str, is_met: bool) -> None:
    for first, second in ((one, other), (other, one)):
        assert HttpAddress(first, 80).overlaps(HttpAddress(second, 80)) is is_met
        assert not HttpAddress(first, 80).overlaps(HttpAddress(second, 81))


@pytest.fixture
def audit_log(tmp_path: Path) -> Iterator[Path]:
    """A file that gets the lines, until the end of the test."""
    file = tmp_path / "audit.jsonl"
    logger = logging.getLogger("muxcluster.audit")
    before = (list(logger.handlers), logger.level, logger.propagate)
    audit.write_to(file)
    yield file
    for handler in set(logger.handlers) - set(before[0]):
        logger.removeHandler(handler)
        handler.close()
    logger.setLevel(before[1])
    logger.propagate = before[2]


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_each_act_is_a_line(backend: FakeBackend, audit_log: Path) -> None:
    app = create_app(backend, ApiSettings(api_key="client", admin_key="admin"))
    with TestClient(app) as http:
        hostile = {"model": "tiny\nfake", "x": "\x1b[2J"}
        refused = http.post("/sleep", params=hostile, headers=ADMIN | {"X-Request-Id": "r-1"})
        assert refused.status_code == 400
        client = {"Authorization": "Bearer client"}
        assert http.post("/wake_up?model=tiny", headers=client).status_code == 403
        # no line for strangers, who could fill the disk, for looking, and for what all may do
        assert http.post("/pin?model=tiny").status_code == 401
        assert http.get("/is_sleeping?model=tiny", headers=ADMIN).status_code in (200, 503)
        http.post("/tokenize", json={"prompt": "x"}, headers=client)
    first, second = lines(audit_log)
    assert first.pop("time") <= second.pop("time")
    assert first == {
        "key": "server.admin_key",
        "address": "testclient",
        "method": "POST",
        "route": "/sleep",
        "query": hostile,
        "status": 400,
        "request_id": "r-1",
    }
    assert (second["key"], second["route"], second["status"], second["query"]) == (
        "server.api_key",
        "/wake_up",
        403,
        None,
    )
    assert "admin" not in audit_log.read_text().replace("server.admin_key", "")
    assert audit_log.stat().st_mode & 0o777 == 0o600
    assert audit_log.stat().st_uid == os.geteuid()


def test_refused_acts_fill_no_disk(
    backend: FakeBackend, audit_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a client, in one period; an operator's are all written, with short queries."""
    monkeypatch.setattr(audit, "PERIOD_S", 3600.0)
    app = create_app(backend, ApiSettings(api_key="client", admin_key="admin"))
    with TestClient(app) as http:
        client = {"Authorization": "Bearer client"}
        for _ in range(25):
            assert http.post("/sleep?model=" + "x" * 9000, headers=client).status_code == 403
        query = {f"x{number}" + "y" * 500: "z" * 500 for number in range(40)}
        for _ in range(12):
            http.post("/sleep", params=query, headers=ADMIN)
    found = lines(audit_log)
    refused = [each for each in found if each["key"] == "server.api_key"]
    assert len(refused) == 10 and all(len(json.dumps(each)) < 400 for each in refused)
    acts = [each["query"] for each in found if each["key"] == "server.admin_key"]
    assert [len(each) for each in acts] == [16] * 12
    assert {len(text) for each in acts for pair in each.items() for text in pair} == {200}


def test_refused_acts_that_are_not_written_are_counted(
    audit_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "PERIOD_S", 0.01)
    log = audit.AuditLog()
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/sleep",
        "query_string": b"model=x",
        "headers": [],
        "state": {"request_id": "r"},
    }

    async def scenario(*counts: int) -> None:
        for count in counts:
            for number in range(count):
                for name in "ab"[: 1 + (number < 3)]:
                    log.note(scope, TenantKey(name, ""), 403)
            await asyncio.sleep(0.1)

    asyncio.run(scenario(12, 4, 15))
    found = [
        (each["key"], each.get("refused_and_not_written", "written")) for each in lines(audit_log)
    ]
    of_a = [what for name, what in found if name == "a"]
    assert of_a == [*["written"] * 10, 2, *["written"] * 14, 5]
    assert [what for name, what in found if name == "b"] == ["written"] * 9


def test_without_a_file_the_lines_are_in_the_log(
    backend: FakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(backend, ApiSettings(admin_key="admin"))
    with caplog.at_level(logging.INFO, "muxcluster.audit"), TestClient(app) as http:
        http.post("/sleep", params={"level": "9"}, headers=ADMIN)
    (record,) = [each for each in caplog.records if each.name == "muxcluster.audit"]
    assert json.loads(record.getMessage())["query"] == {"level": "9"}
