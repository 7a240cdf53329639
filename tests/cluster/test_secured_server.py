"""`muxcluster serve` as for a network: HTTPS, a port for operators, an audit log, logs as JSON."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from openai import OpenAI

from muxcluster.core.inputs.tls_files import TlsFiles
from tests.cluster.conftest import MUXCLUSTER, ServerProcess, StartServer
from tests.http.certificates import make_certificate, trusting
from tests.http.listeners import CLOSING, exchange, free_port, status_of

MODEL = "llama-a"
KEY, ADMIN_KEY = "client-key-Xy7", "admin-key-Zw9"
pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class Secured:
    server: ServerProcess
    port: int
    admin_url: str
    files: TlsFiles
    audit_log: Path

    def command(self, *arguments: str, key: str = ADMIN_KEY) -> subprocess.CompletedProcess[str]:
        """A command of ours that trusts the server's certificate."""
        variables = {"MUXCLUSTER_API_KEY": key, "MUXCLUSTER_ADMIN_KEY": key}
        return subprocess.run(
            [*MUXCLUSTER, *arguments, "--url", self.admin_url],
            env={**os.environ, **variables, "SSL_CERT_FILE": self.files.cert},
            capture_output=True,
            text=True,
            timeout=120,
        )


@pytest.fixture(scope="module")
def secured(
    start_server: StartServer,
    model_dirs: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    files = make_certificate(folder / "tls")
    admin_port = free_port()
    settings = {
        "api_key": KEY,
        "admin_key": ADMIN_KEY,
        "tls": {"cert": "tls/cert.pem", "key": "tls/key.pem"},
        "admin": {"port": admin_port},
        "audit_log": str(folder / "audit.jsonl"),
        "log_format": "json",
        "max_connections_per_address": 500,
    }
    models = [{"name": MODEL, "path": str(model_dirs[MODEL]), "max_seqs": 8}]
    file = folder / "muxcluster.yaml"
    file.write_text(yaml.safe_dump({"models": models, "server": settings}))
    server = start_server("serve", str(file), "--port", "0")
    port = int(server.wait_for(r"curl https://127\.0\.0\.1:(\d+)/v1/")[1])
    server.wait_for("ready after")
    admin_url = f"https://127.0.0.1:{admin_port}"
    yield Secured(server, port, admin_url, files, folder / "audit.jsonl")
    assert server.stop() == 0


def test_clients_stream_over_https_alone(secured: Secured) -> None:
    with (
        httpx.Client(verify=trusting(secured.files)) as http,
        OpenAI(
            base_url=f"https://127.0.0.1:{secured.port}/v1", api_key=KEY, http_client=http
        ) as client,
    ):
        stream = client.completions.create(
            model=MODEL, prompt="hello", max_tokens=20, stream=True, extra_body={"ignore_eos": True}
        )
        assert sum(bool(chunk.choices[0].finish_reason) for chunk in stream) == 1
        assert [model.id for model in client.models.list()] == [MODEL]
    answer = exchange(secured.port, CLOSING)
    assert status_of(answer) == 400 and b"https://" in answer


def test_operators_have_a_port_of_their_own(secured: Secured) -> None:
    assert secured.server.wait_for(r"operators: (\S+)/dashboard")[1] == secured.admin_url
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    with httpx.Client(verify=trusting(secured.files), headers=headers) as http:
        clients = f"https://127.0.0.1:{secured.port}"
        for path in ("/metrics", "/status", "/timeline", "/dashboard", "/v1/cluster/live"):
            assert http.get(f"{clients}{path}").status_code == 404, path
            assert http.get(f"{secured.admin_url}{path}").status_code == 200, path
        assert http.get(f"{secured.admin_url}/v1/models").status_code == 404
        ready = http.get(f"{clients}/ready").json()
        assert ready == {"status": "ready", "conditions": []}
        live = http.get(f"{secured.admin_url}/v1/cluster/live").json()
        assert live["conditions"] == []
        assert (
            'muxcluster:condition{condition="stalled"} 0.0'
            in http.get(f"{secured.admin_url}/metrics").text
        )


def test_commands_trust_the_certificate_and_acts_are_audited(secured: Secured) -> None:
    shown = secured.command("status")
    assert shown.returncode == 0 and MODEL in shown.stdout, shown.stderr
    refused = secured.command("park", MODEL)
    assert refused.returncode == 2, refused
    denied = secured.command("park", MODEL, key=KEY)
    assert denied.returncode == 2, denied
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in secured.audit_log.read_text().splitlines()
    ]
    queries = [line["query"] for line in lines]
    assert queries[0]["model"] == MODEL and queries[1:] == [None]
    found = [(line["key"], line["route"], line["status"]) for line in lines]
    assert found == [
        ("server.admin_key", "/sleep", 400),
        ("server.api_key", "/sleep", 403),
    ]
    assert secured.audit_log.stat().st_mode & 0o777 == 0o600


def test_log_lines_are_json_and_have_no_key(secured: Secured) -> None:
    """Those of all processes; what `serve` itself says is text, on standard output."""
    lines = [json.loads(line) for line in secured.server.lines if line.startswith("{")]
    assert {"controller", "local-0.1"} <= {line["process"] for line in lines}
    assert not any(" | " in line for line in secured.server.lines if not line.startswith("{"))
    told = [line for line in lines if "paged backend" in line["message"]]
    assert told and told[0].keys() == {"process", "time", "level", "logger", "message"}
    output = secured.server.output
    assert KEY not in output and ADMIN_KEY not in output
