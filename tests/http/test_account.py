"""Where the time of a request went: in usage on request, in the log and as metrics."""

import json
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from muxcluster.core.errors import EngineFailure
from muxcluster.core.events import Finished, FinishReason, TokenDelta
from muxcluster.http.app import create_app
from muxcluster.http.calls.account import EngineTime
from muxcluster.http.metrics import request_log
from tests.http.test_status_routes import samples

TEXT = {"model": "tiny", "prompt": "hi"}
ASKED = {"X-Muxcluster-Timing": "1"}
PARTS = ("queue_s", "prefill_s", "decode_s", "preempted_s", "restore_s", "recovery_s")
END = Finished(
    "r",
    FinishReason.LENGTH,
    num_preemptions=1,
    queue_s=0.001,
    prefill_s=0.002,
    decode_s=0.003,
    preempted_s=0.0005,
    restore_s=0.00025,
    recovery_s=0.000125,
    num_recoveries=2,
)


def timed(backend: Any, tokens: list[int]) -> None:
    """Makes the engine answer at once with `tokens` and the account of END."""
    backend.delay_s = 0.01
    backend._deltas = lambda request: iter(
        [TokenDelta((tokens[0],)), TokenDelta(tuple(tokens[1:]), finished=END)]
    )


def assert_account_of_end(timing: dict[str, float]) -> None:
    assert [timing[part] for part in PARTS] == [0.001, 0.002, 0.003, 0.0005, 0.00025, 0.000125]
    assert timing["framework_s"] > 0
    assert sum(timing[part] for part in PARTS) + timing["framework_s"] == pytest.approx(
        timing["total_s"]
    )


def test_usage_tells_the_time_when_asked(http: TestClient, backend: Any, says: Any) -> None:
    timed(backend, says("hello world"))
    assert "timing" not in http.post("/v1/completions", json=TEXT).json()["usage"]
    for path, body in (
        ("/v1/completions", TEXT),
        ("/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}),
    ):
        usage = http.post(path, json=body, headers=ASKED).json()["usage"]
        assert_account_of_end(usage["timing"])
        assert usage["timing"]["total_s"] > 0.02


def events_of(answer: httpx.Response) -> list[Any]:
    lines = answer.text.strip().split("\n\n")
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_a_stream_tells_it_with_the_last_event(http: TestClient, backend: Any, says: Any) -> None:
    timed(backend, says("hello world"))
    body = TEXT | {"stream": True}
    assert all("usage" not in event for event in events_of(http.post("/v1/completions", json=body)))
    *others, last = events_of(http.post("/v1/completions", json=body, headers=ASKED))
    assert all(event["usage"] is None for event in others)
    assert last["choices"] == []
    assert_account_of_end(last["usage"]["timing"])


def test_a_stop_string_ends_before_the_units_own_account(
    http: TestClient, backend: Any, says: Any
) -> None:
    says("hello world again", ends=False)
    backend.delay_s = 0.005
    answer = http.post("/v1/completions", json=TEXT | {"stop": "wor"}, headers=ASKED).json()
    assert answer["choices"][0]["stop_reason"] == "wor"
    timing = answer["usage"]["timing"]
    assert timing["prefill_s"] >= 0.005 and timing["decode_s"] > 0 and timing["framework_s"] > 0
    assert sum(timing.values()) == pytest.approx(2 * timing["total_s"])


def test_several_choices_tell_of_the_last(http: TestClient, backend: Any, says: Any) -> None:
    timed(backend, says("hello world"))
    usage = http.post("/v1/completions", json=TEXT | {"n": 3}, headers=ASKED).json()["usage"]
    assert_account_of_end(usage["timing"])


def test_each_part_is_a_histogram(http: TestClient, backend: Any, says: Any) -> None:
    timed(backend, says("hello world"))
    for _ in range(2):
        http.post("/v1/completions", json=TEXT)
    found = samples(http)
    assert found["muxcluster:request_preempted_seconds_sum", "tiny"] == pytest.approx(0.001)
    assert found["muxcluster:request_restore_seconds_sum", "tiny"] == pytest.approx(0.0005)
    assert found["muxcluster:request_recovery_seconds_sum", "tiny"] == pytest.approx(0.00025)
    assert found["muxcluster:request_recoveries_total", "tiny"] == 4
    names = ("queue_time", "prefill_time", "decode_time")
    parts = [f"vllm:request_{name}_seconds_sum" for name in names]
    parts += [f"muxcluster:request_{name}_seconds_sum" for name in ("preempted", "restore")]
    parts += [f"muxcluster:request_{name}_seconds_sum" for name in ("recovery", "framework")]
    whole = found["vllm:e2e_request_latency_seconds_sum", "tiny"]
    assert sum(found[part, "tiny"] for part in parts) == pytest.approx(whole)
    assert whole >= 2 * 0.02


@pytest.fixture
def log(tmp_path: Path) -> Any:
    """Reads the lines of a request log that is on for the test."""
    path = tmp_path / "requests.jsonl"
    request_log.write_to(path)
    yield lambda: [json.loads(line) for line in path.read_text().splitlines()]
    for sink in list(request_log.logger.handlers):
        sink.close()
        request_log.logger.removeHandler(sink)
    request_log.logger.setLevel(logging.NOTSET)
    request_log.logger.propagate = True


def test_one_line_per_request_by_its_id(backend: Any, says: Any, log: Any) -> None:
    timed(backend, says("hello world"))
    with TestClient(create_app(backend), raise_server_exceptions=False) as http:
        http.post("/v1/completions", json=TEXT | {"n": 2}, headers={"X-Request-Id": "mine"})
        backend.error, backend.error_after = EngineFailure("it broke"), 1
        http.post("/v1/completions", json=TEXT | {"request_id": "other"})
    first, second, failed = log()
    for line in (first, second):
        assert (line["request_id"], line["id"], line["model"]) == ("mine", "cmpl-mine", "tiny")
        assert (line["end"], line["error"], line["class"]) == ("length", None, "interactive")
        assert (line["preemptions"], line["recoveries"]) == (1, 2)
        assert_account_of_end({key: value for key, value in line.items() if key.endswith("_s")})
    assert sorted((first["choice"], second["choice"])) == [0, 1]
    assert (failed["id"], failed["end"], failed["error"]) == ("cmpl-other", "error", "it broke")
    assert (failed["prompt_tokens"], failed["output_tokens"]) == (2, 1)


def test_the_log_is_off_unless_somebody_reads_it() -> None:
    assert not request_log.is_on()


def test_parts_and_framework_add_up_to_the_whole() -> None:
    parts = EngineTime.of(END).within(1.0)
    assert parts["framework_s"] == pytest.approx(1.0 - sum(parts[part] for part in PARTS))
    assert list(parts)[-2:] == ["framework_s", "total_s"]


@pytest.mark.parametrize(
    ("queue_s", "preempted_s", "waking_s", "parts"),
    [
        (3.0, 0.0, 2.0, (1.0, 0.0, 2.0)),
        (1.0, 4.0, 2.5, (0.0, 2.5, 2.5)),
        (1.0, 4.0, 0.0, (1.0, 4.0, 0.0)),
        (1.0, 1.0, 9.0, (0.0, 0.0, 2.0)),  # a unit that tells more than it waited
    ],
)
def test_a_wait_for_weights_is_a_part_of_its_own(queue_s, preempted_s, waking_s, parts) -> None:
    end = Finished(
        "r", FinishReason.STOP, queue_s=queue_s, preempted_s=preempted_s, waking_s=waking_s
    )
    found = EngineTime.of(end)
    assert (found.queue_s, found.preempted_s, found.waking_s) == parts
    assert sum(found.within(10.0).values()) == pytest.approx(20.0)
