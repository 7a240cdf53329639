"""Quotas, expiry, events and plans of batches over HTTP."""

import json
import sqlite3
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from muxcluster.batch.service import local
from muxcluster.batch.store.database import database_path
from muxcluster.http.routes import batches as routes
from muxcluster.http.settings import ApiSettings
from tests.batch.jobs import line_of
from tests.http.batches.clients import ended, submit
from tests.http.batches.conftest import client_of
from tests.http.fakes import running_server, wait_until

HOUR = {"anchor": "created_at", "seconds": 3600}


def _upload(client: openai.OpenAI, num_bytes: int, **fields: Any) -> Any:
    return client.files.create(file=("in.jsonl", b"x" * num_bytes), purpose="batch", **fields)


def test_a_full_key_is_refused_and_others_are_not(batch_app, says) -> None:
    says("hello")
    app = batch_app(ApiSettings(api_key="one", more_keys=("two",)), max_key_bytes=3_000_000)
    with client_of(app, "one") as client:
        first = _upload(client, 2_500_000)
        with pytest.raises(openai.PermissionDeniedError) as refused:
            _upload(client, 600_000)
        assert refused.value.status_code == 403
        assert refused.value.code == "storage_quota_exceeded"
        assert refused.value.type == "invalid_request_error"
        assert "hold 2500000 of at most 3000000 bytes" in refused.value.message
        with openai.OpenAI(base_url=client.base_url, api_key="two", max_retries=0) as other:
            _upload(other, 600_000)
        # the refused upload holds nothing
        rest = _upload(client, 500_000)
        with pytest.raises(openai.PermissionDeniedError) as refused:
            client.batches.create(
                input_file_id=rest.id, endpoint="/v1/completions", completion_window="1h"
            )
        assert refused.value.code == "storage_quota_exceeded"
        client.files.delete(first.id)
        assert ended(client, submit(client, [line_of("a")]).id).status == "completed"
        text = httpx.get(
            f"{client.base_url}".replace("/v1/", "/metrics"),
            headers={"Authorization": "Bearer one"},
        ).text
    assert "muxcluster:batch_stored_bytes" in text


def test_files_expire(batch_app, says, monkeypatch, tmp_path) -> None:
    says("hello")
    monkeypatch.setattr(local, "EXPIRY_PERIOD_S", 0.01)
    with client_of(batch_app()) as client:
        file = _upload(client, 10, expires_after=HOUR)
        assert file.expires_at == file.created_at + 3600
        assert client.files.retrieve(file.id).expires_at == file.expires_at
        assert _upload(client, 10).expires_at is None
        batch = submit(client, [line_of("a")], output_expires_after=HOUR)
        found = ended(client, batch.id)
        output = client.files.retrieve(found.output_file_id)
        assert output.expires_at == output.created_at + 3600
        stored = tmp_path / "batches" / "files" / output.id
        assert stored.exists()
        with sqlite3.connect(database_path(tmp_path / "batches")) as connection:
            connection.execute("UPDATE files SET expires_at = 1 WHERE id = ?", (output.id,))
        assert wait_until(lambda: not stored.exists())
        with pytest.raises(openai.NotFoundError):
            client.files.content(output.id)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"expires_after[anchor]": "created_at"}, "expires_after.seconds"),
        ({"expires_after[seconds]": "3600"}, "expires_after.anchor"),
        (
            {"expires_after[anchor]": "now", "expires_after[seconds]": "3600"},
            "expires_after.anchor",
        ),
        *(
            (
                {"expires_after[anchor]": "created_at", "expires_after[seconds]": seconds},
                "expires_after.seconds",
            )
            for seconds in ("3599", "2592001", "soon", "-1", "1e9", "")
        ),
        ({"expires_after[more]": "1"}, "expires_after[more]"),
    ],
)
def test_wrong_expiries_are_refused(batch_app, tmp_path, fields, param) -> None:
    with running_server(batch_app()) as url:
        answer = httpx.post(
            f"{url}/v1/files",
            data={"purpose": "batch", **fields},
            files={"file": ("in.jsonl", b"x")},
        )
        assert httpx.get(f"{url}/v1/files").json()["data"] == []
        body = {
            "input_file_id": "file-x",
            "endpoint": "/v1/completions",
            "completion_window": "1h",
            "output_expires_after": {"anchor": "created_at", "seconds": 3599},
        }
        other = httpx.post(f"{url}/v1/batches", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert other.json()["error"]["param"] == "output_expires_after.seconds"


def _events(url: str, batch_id: str) -> Iterator[Any]:
    """What the stream of a batch says, until its end."""
    with httpx.stream("GET", f"{url}/v1/batches/{batch_id}/events", timeout=30.0) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("data: "):
                data = line.removeprefix("data: ")
                yield data if data == "[DONE]" else json.loads(data)


def test_events_tell_the_counts_until_the_end(batch_app, backend, says, monkeypatch) -> None:
    monkeypatch.setattr(local, "NEWS_PERIOD_S", 0.01)
    says("hello")
    backend.most_deltas = 1
    with client_of(batch_app(max_running=1)) as client:
        batch = submit(client, [line_of(f"r{i}") for i in range(3)])
        assert wait_until(lambda: len(backend.requests) == 1)
        url = str(client.base_url).removesuffix("/v1/")
        told = []
        for event in _events(url, batch.id):
            told.append(event)
            if event != "[DONE]" and event["status"] == "in_progress":
                backend.most_deltas = 10**6
        final = client.batches.retrieve(batch.id)
        again = list(_events(url, batch.id))
        missing = httpx.get(f"{url}/v1/batches/batch_none/events")
    assert told[-1] == "[DONE]"
    assert told[-2] == final.model_dump(mode="json", exclude_unset=True)
    counts = [event["request_counts"]["completed"] for event in told[:-1]]
    assert counts == sorted(counts)
    assert counts[0] < 3 == counts[-1]
    assert again == told[-2:]
    assert missing.status_code == 404


def test_a_quiet_batch_has_a_heartbeat(batch_app, backend, says, monkeypatch) -> None:
    monkeypatch.setattr(local, "NEWS_PERIOD_S", 0.01)
    monkeypatch.setattr(routes, "HEARTBEAT_S", 0.05)
    says("hello")
    backend.most_deltas = 1
    with client_of(batch_app(max_running=1)) as client:
        batch = submit(client, [line_of("a")])
        assert wait_until(lambda: len(backend.requests) == 1)
        url = str(client.base_url).removesuffix("/v1/")
        events = _events(url, batch.id)
        told = [next(events) for _ in range(4)]
        events.close()
        assert {event["status"] for event in told[1:]} == {"in_progress"}
        monkeypatch.setattr(routes, "MAX_STREAM_S", 0.1)
        # a stream that ends before its batch has no last event
        assert list(_events(url, batch.id))[-1] != "[DONE]"
        client.batches.cancel(batch.id)


def test_a_key_sees_no_other_keys_events_and_files(batch_app, says) -> None:
    says("hello")
    app = batch_app(ApiSettings(api_key="one", more_keys=("two",)))
    with client_of(app, "one") as client:
        batch = submit(client, [line_of("a")])
        url = str(client.base_url).removesuffix("/v1/")
        other = {"Authorization": "Bearer two"}
        events = httpx.get(f"{url}/v1/batches/{batch.id}/events", headers=other)
        body = {"input_file_id": batch.input_file_id}
        plan = httpx.post(f"{url}/v1/batches/plan", json=body, headers=other)
        ended(client, batch.id)
    assert (events.status_code, plan.status_code) == (404, 404)


def test_a_server_that_plans_nothing_says_so(batch_client) -> None:
    file = _upload(batch_client, 10)
    with pytest.raises(openai.InternalServerError) as refused:
        batch_client.post("/batches/plan", body={"input_file_id": file.id}, cast_to=object)
    assert refused.value.status_code == 503
    assert refused.value.code == "no_plans"
    with pytest.raises(openai.BadRequestError) as refused:
        body = {"input_file_id": file.id, "endpoint": "/v1/moderations"}
        batch_client.post("/batches/plan", body=body, cast_to=object)
    assert refused.value.param == "endpoint"
