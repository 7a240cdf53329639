"""Spans as a collector receives them: OTLP over HTTP, decoded by OpenTelemetry's own messages."""

import gzip
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from starlette.testclient import TestClient

from muxcluster.core.errors import ConfigError, NotReady
from muxcluster.http.metrics import spans
from muxcluster.http.metrics.record import PART_HISTOGRAMS
from tests.http.fakes import FakeBackend
from tests.local_http import QuietHandler, running

TEXT = {"model": "tiny", "prompt": "hi", "max_tokens": 50, "temperature": 0.5}
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector:
    """What came, and what it answers."""

    def __init__(self) -> None:
        self.status = 200
        self.came: list[ExportTraceServiceRequest] = []
        self.lock = threading.Lock()

    def spans(self) -> list[Any]:
        with self.lock:
            return [
                span
                for each in self.came
                for resource in each.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            ]

    def services(self) -> set[str]:
        return {
            attribute.value.string_value
            for each in self.came
            for resource in each.resource_spans
            for attribute in resource.resource.attributes
            if attribute.key == "service.name"
        }


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    found = Collector()

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                data = gzip.decompress(data)
            with found.lock:
                found.came.append(ExportTraceServiceRequest.FromString(data))
            self.send(b"", found.status)

    with running(Handler) as url:
        spans.send_to(f"{url}/v1/traces")
        yield found
        spans.stop()


def values(span: Any) -> dict[str, Any]:
    return {
        each.key: getattr(each.value, str(each.value.WhichOneof("value")))
        for each in span.attributes
    }


def test_a_request_is_a_span_of_its_callers_trace_with_its_parts_below(
    http: TestClient, says, collector: Collector
) -> None:
    num_tokens = len(says("hello world")) + 1
    headers = {"traceparent": f"00-{TRACE}-{SPAN}-01", "X-Request-Id": "mine"}
    answer = http.post("/v1/completions", json=TEXT | {"n": 2}, headers=headers)
    assert answer.status_code == 200
    (first, second) = http.get("/v1/cluster/requests/mine").json()["choices"]
    spans.stop()
    found = collector.spans()
    roots = [each for each in found if each.name == "llm_request"]
    assert {each.trace_id.hex() for each in found} == {TRACE}
    assert [each.parent_span_id.hex() for each in roots] == [SPAN, SPAN]
    assert collector.services() == {"muxcluster"}
    for root, told in zip(roots, (first, second), strict=True):
        said = values(root)
        assert said["gen_ai.request.id"] == "mine" and said["gen_ai.response.model"] == "tiny"
        assert (said["gen_ai.request.n"], said["gen_ai.request.temperature"]) == (2, 0.5)
        assert said["gen_ai.usage.completion_tokens"] == num_tokens
        assert said["gen_ai.latency.time_to_first_token"] == told["ttft_s"]
        assert said["gen_ai.latency.time_in_queue"] == told["queue_s"] == 0.01
        assert said["muxcluster.end"] == "stop"
        seconds = (root.end_time_unix_nano - root.start_time_unix_nano) / 1e9
        assert seconds == pytest.approx(told["total_s"], abs=1e-6)
        assert [event.name for event in root.events] == ["first token"]
        parts = [each for each in found if each.parent_span_id == root.span_id]
        assert "queue" in {each.name for each in parts}
        for part in parts:
            length_s = (part.end_time_unix_nano - part.start_time_unix_nano) / 1e9
            assert length_s == pytest.approx(told[f"{part.name}_s"], abs=1e-6)
        assert sum(told[part] for part in spans.PARTS) == pytest.approx(told["total_s"], abs=1e-4)
    assert set(spans.PARTS) == set(PART_HISTOGRAMS) - {"total_s"}


def test_a_trace_that_is_not_recorded_gets_no_span(http: TestClient, says, collector) -> None:
    says("hello")
    for headers in ({"traceparent": f"00-{TRACE}-{SPAN}-00"}, {}):
        assert http.post("/v1/completions", json=TEXT, headers=headers).status_code == 200
    spans.stop()
    (root,) = [each for each in collector.spans() if each.name == "llm_request"]
    assert root.parent_span_id == b"" and root.trace_id.hex() != TRACE


def test_an_error_is_in_the_span(http: TestClient, backend: FakeBackend, collector) -> None:
    backend.error = NotReady("gone", code="replica_lost")
    assert http.post("/v1/completions", json=TEXT).status_code == 503
    spans.stop()
    (root,) = [each for each in collector.spans() if each.name == "llm_request"]
    assert (root.status.code, root.status.message) == (2, "gone")


def test_a_request_ends_well_whatever_becomes_of_its_spans(
    http: TestClient, says, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of ours, then one of the collector's."""
    says("hello")
    broken = monkeypatch.context()
    with broken as patch:
        patch.setattr(spans, "_attributes", lambda ended, call: 1 / 0)
        assert http.post("/v1/completions", json=TEXT).status_code == 200
    collector.status = 400
    assert http.post("/v1/completions", json=TEXT).status_code == 200
    spans.stop()
    assert len([each for each in collector.spans() if each.name == "llm_request"]) == 1
    assert http.post("/v1/completions", json=TEXT).status_code == 200


def test_without_the_exporter_a_server_runs_without_spans(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, f"{spans.EXPORTER}.trace_exporter", None)
    spans.begin("http://127.0.0.1:1/v1/traces")
    assert not spans.is_on()
    assert "muxcluster[otel]" in caplog.text
    spans.begin(None)
    assert not spans.is_on()


def test_a_missing_exporter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    spans.check_installed("server.otlp_traces_endpoint")
    monkeypatch.setattr(spans, "EXPORTER", "opentelemetry.exporter.missing.http")
    with pytest.raises(ConfigError, match=r"otlp_traces_endpoint: .*muxcluster\[otel\]"):
        spans.check_installed("server.otlp_traces_endpoint")
