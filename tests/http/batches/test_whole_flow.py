"""The openai client through the whole flow of a batch."""

import httpx
import openai
import pytest

from muxcluster.constraints.grammars import json_schema
from muxcluster.core.sampling import Constraint
from muxcluster.http.settings import ApiSettings
from tests.batch.disks import fill, mounted
from tests.batch.jobs import line_of
from tests.cli.calls import call
from tests.http.batches.clients import ended, read_lines, submit
from tests.http.batches.conftest import client_of
from tests.http.fakes import served_model, wait_until


def test_from_file_to_answers(batch_client, says):
    says("hello world")
    batch = submit(batch_client, [line_of(f"r{i}") for i in range(50)], metadata={"team": "a"})
    assert batch.object == "batch"
    assert batch.status in ("validating", "in_progress", "finalizing", "completed")
    assert batch.expires_at == batch.created_at + 86400
    batch = ended(batch_client, batch.id)
    assert batch.status == "completed"
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (50, 50, 0)
    assert batch.error_file_id is None
    assert batch.metadata == {"team": "a"}
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    found = read_lines(batch_client, batch.output_file_id)
    assert found.keys() == {f"r{i}" for i in range(50)}
    response = found["r7"]["response"]
    assert response["status_code"] == 200
    assert response["body"]["object"] == "text_completion"
    assert response["body"]["usage"]["completion_tokens"] == 3
    usages = [each["response"]["body"]["usage"] for each in found.values()]
    assert batch.usage.input_tokens == sum(each["prompt_tokens"] for each in usages) > 0
    assert batch.usage.output_tokens == 150
    assert batch.usage.total_tokens == sum(each["total_tokens"] for each in usages)
    assert batch.usage.input_tokens_details.cached_tokens == sum(
        each["prompt_tokens_details"]["cached_tokens"] for each in usages
    )


def test_unknown_ids(batch_client):
    with pytest.raises(openai.NotFoundError) as error:
        batch_client.batches.retrieve("batch_none")
    assert error.value.code == "not_found"
    with pytest.raises(openai.NotFoundError):
        batch_client.files.content("file-none")


def test_chat_bodies_and_several_models(batch_app, backend, model_dir, says):
    backend.served.append(served_model(model_dir, "other"))
    says("hello")
    messages = [{"role": "user", "content": "hi"}]
    url = "/v1/chat/completions"
    lines = [
        line_of(name, url=url, body={"model": name, "messages": messages})
        for name in ("tiny", "other")
    ]
    with client_of(batch_app()) as client:
        batch = ended(client, submit(client, lines, endpoint=url).id)
        found = read_lines(client, batch.output_file_id)
    assert {request.model for request in backend.requests} == {"tiny", "other"}
    assert {str(request.service_class) for request in backend.requests} == {"batch"}
    for name in ("tiny", "other"):
        body = found[name]["response"]["body"]
        assert body["model"] == name
        assert body["choices"][0]["message"]["content"] == "hello"


def test_bad_lines_are_told_and_the_rest_runs(batch_client, says):
    says("hello")
    body = {"model": "tiny", "prompt": "x", "max_tokens": 3}
    lines = [
        line_of("good"),
        b"{not json",
        line_of("good"),
        line_of("model", body={**body, "model": "gone"}),
        line_of("url", url="http://example.org/v1/completions"),
        b"\xff\xfe",
        line_of("range", body={**body, "temperature": 9}),
        line_of("stream", body={**body, "stream": True}),
    ]
    batch = ended(batch_client, submit(batch_client, lines).id)
    assert batch.status == "completed"
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (8, 1, 7)
    assert read_lines(batch_client, batch.output_file_id).keys() == {"good"}
    text = batch_client.files.content(batch.error_file_id).text
    for number, code in ((2, "invalid_json"), (4, "model_not_found"), (6, "invalid_json")):
        assert f'"error":{{"code":"{code}","message":"line {number}: ' in text
    assert "custom_id 'good' is that of line 1 already" in text
    assert "url: expected /v1/completions, found 'http://example.org" in text
    assert '"status_code":400' in text


def test_no_line_that_can_run_is_a_failed_batch(batch_client):
    batch = ended(batch_client, submit(batch_client, [b"nonsense"]).id)
    assert batch.status == "failed"
    assert "no line" in batch.errors.data[0].message
    assert batch.output_file_id is None
    assert "line 1: " in batch_client.files.content(batch.error_file_id).text


def test_more_lines_than_may_be(batch_app):
    with client_of(batch_app(max_lines=3)) as client:
        batch = ended(client, submit(client, [line_of(f"r{i}") for i in range(4)]).id)
    assert batch.status == "failed"
    assert batch.errors.data[0].message == "the input file has more than 3 lines"


def test_a_long_line_fails_alone(batch_app, says):
    says("hello")
    lines = [line_of("a"), line_of("long", body={"model": "tiny", "prompt": "x" * 5000})]
    with client_of(batch_app(max_line_bytes=1000)) as client:
        batch = ended(client, submit(client, lines).id)
        text = client.files.content(batch.error_file_id).text
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 1)
    assert "line 2: it has 51" in text


def test_cancel_aborts_what_runs_and_tells_the_rest(batch_app, backend, says):
    says("hello")
    backend.most_deltas = 1
    with client_of(batch_app(max_running=4)) as client:
        batch = submit(client, [line_of(f"r{i}") for i in range(10)])
        assert wait_until(lambda: len(backend.requests) == 4)
        assert client.batches.cancel(batch.id).status == "cancelling"
        batch = ended(client, batch.id)
        assert batch.status == "cancelled"
        assert len(backend.aborted) == 4
        assert batch.request_counts.failed == 10
        assert batch.cancelling_at <= batch.cancelled_at
        found = read_lines(client, batch.error_file_id)
        assert found.keys() == {f"r{i}" for i in range(10)}
        assert found["r9"]["error"]["code"] == "batch_cancelled"
        with pytest.raises(openai.BadRequestError, match="it is cancelled"):
            client.batches.cancel(batch.id)


def test_a_near_deadline_comes_first(batch_app, backend, says):
    says("hello")
    backend.most_deltas = 1
    with client_of(batch_app(max_running=1)) as client:
        first = submit(client, [line_of(f"far{i}") for i in range(5)])
        assert wait_until(lambda: len(backend.requests) == 1)
        urgent = submit(client, [line_of(f"near{i}") for i in range(5)], "5m")
        assert wait_until(lambda: client.batches.retrieve(urgent.id).status == "in_progress")
        backend.most_deltas = 100
        ends = [ended(client, batch.id) for batch in (urgent, first)]
    assert [batch.status for batch in ends] == ["completed"] * 2
    order = [request.request_id.startswith(f"{urgent.id}-") for request in backend.requests]
    # one line ran already, and one may have had the next place
    assert order[:2].count(True) <= 1
    assert order[2:6] == [True] * 4


def test_the_window_ends(batch_app, backend, says, monkeypatch):
    says("hello")
    backend.most_deltas = 1
    monkeypatch.setattr("muxcluster.batch.service.local.window_s", lambda text: 1)
    with client_of(batch_app()) as client:
        batch = ended(client, submit(client, [line_of("a"), line_of("b")]).id)
        assert batch.status == "expired"
        assert batch.expired_at is not None
        found = read_lines(client, batch.error_file_id)
    assert found["b"]["error"]["code"] == "batch_expired"
    assert sorted(backend.aborted) == sorted(request.request_id for request in backend.requests)


@pytest.mark.parametrize("window", ["0m", "31d", "soon", "24", "-1h", "1.5h"])
def test_windows_that_are_refused(batch_client, window):
    with pytest.raises(openai.BadRequestError, match="completion_window: expected 1m to 30d"):
        submit(batch_client, [line_of("a")], window)


def test_listing_pages(batch_client, says):
    says("hello")
    made = [submit(batch_client, [line_of("a")]).id for _ in range(5)]
    page = batch_client.batches.list(limit=2)
    assert page.has_more
    assert [batch.id for batch in page.data] == made[:2:-1]
    assert [batch.id for batch in batch_client.batches.list(limit=2)] == made[::-1]
    for batch_id in made:
        ended(batch_client, batch_id)
    inputs = [file.id for file in batch_client.files.list(purpose="batch", order="asc", limit=2)]
    assert inputs == [batch_client.batches.retrieve(each).input_file_id for each in made]
    outputs = [file.id for file in batch_client.files.list(purpose="batch_output", limit=3)]
    assert sorted(outputs) == sorted(f"file-{each}-output" for each in made)
    with pytest.raises(openai.NotFoundError):
        batch_client.batches.list(after="batch_none")
    with pytest.raises(openai.BadRequestError):
        batch_client.batches.list(limit=0)


def test_each_key_sees_its_own(batch_app, says):
    says("hello")
    app = batch_app(ApiSettings(api_key="one", more_keys=("two",)))
    with client_of(app, "one") as mine:
        other = mine.with_options(api_key="two")
        batch = ended(mine, submit(mine, [line_of("a")]).id)
        attempts = (
            lambda: other.batches.retrieve(batch.id),
            lambda: other.batches.cancel(batch.id),
            lambda: other.batches.list(after=batch.id),
            lambda: other.files.retrieve(batch.input_file_id),
            lambda: other.files.content(batch.output_file_id),
            lambda: other.files.delete(batch.output_file_id),
            lambda: other.files.list(after=batch.input_file_id),
            lambda: other.batches.create(
                input_file_id=batch.input_file_id,
                endpoint="/v1/completions",
                completion_window="1h",
            ),
        )
        for attempt in attempts:
            with pytest.raises(openai.NotFoundError):
                attempt()
        assert list(other.batches.list()) == []
        assert list(other.files.list()) == []
        assert len(list(mine.files.list())) == 2
        with pytest.raises(openai.AuthenticationError):
            mine.with_options(api_key="three").files.list()


def test_a_server_without_keys_has_one_owner(batch_app, says):
    says("hello")
    with client_of(batch_app(ApiSettings()), "any") as mine:
        batch = ended(mine, submit(mine, [line_of("a")]).id)
        assert mine.with_options(api_key="other").batches.retrieve(batch.id).id == batch.id


def test_batches_go_on_after_a_restart(batch_app, backend, says):
    says("hello")
    backend.most_deltas = 1
    with client_of(batch_app(max_running=2)) as client:
        batch = submit(client, [line_of(f"r{i}") for i in range(6)])
        assert wait_until(lambda: len(backend.requests) == 2)
    assert len(backend.aborted) == 2
    backend.most_deltas = 100
    with client_of(batch_app()) as client:
        batch = ended(client, batch.id)
        assert read_lines(client, batch.output_file_id).keys() == {f"r{i}" for i in range(6)}


def test_delete(batch_app, backend, says):
    says("hello")
    backend.most_deltas = 1
    with client_of(batch_app()) as client:
        batch = submit(client, [line_of("a")])
        with pytest.raises(openai.BadRequestError, match="still reads it"):
            client.files.delete(batch.input_file_id)
        backend.most_deltas = 100
        batch = ended(client, batch.id)
        for file_id in (batch.input_file_id, batch.output_file_id):
            assert client.files.delete(file_id).deleted
            with pytest.raises(openai.NotFoundError):
                client.files.content(file_id)
        assert list(client.files.list()) == []


def test_requests_that_are_refused(batch_client):
    file = batch_client.files.create(file=("in.jsonl", line_of("a")), purpose="batch")
    good = {"input_file_id": file.id, "endpoint": "/v1/completions", "completion_window": "1h"}
    http = httpx.Client(base_url=str(batch_client.base_url))
    headers = {"Authorization": "Bearer none"}
    for changes, param in (
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"endpoint": None}, "endpoint"),
        ({"input_file_id": 7}, "input_file_id"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"output_expires_after": {"seconds": 3600}}, "output_expires_after.anchor"),
    ):
        answer = http.post("batches", json={**good, **changes}, headers=headers)
        assert answer.status_code == 400, changes
        assert answer.json()["error"]["param"] == param


def test_metrics(batch_app, says, monkeypatch):
    monkeypatch.setattr("muxcluster.http.metrics.batches.PERIOD_S", 0.01)
    says("hello world")
    lines = [line_of(f"r{i}") for i in range(4)] + [b"bad"]
    with client_of(batch_app()) as client:
        ended(client, submit(client, lines).id)
        url = str(client.base_url).removesuffix("/v1/")
        for expected in (
            'muxcluster:batches{status="completed"} 1.0',
            'muxcluster:batches{status="in_progress"} 0.0',
            'muxcluster:batch_lines_total{result="completed"} 4.0',
            'muxcluster:batch_lines_total{result="failed"} 1.0',
            'muxcluster:batch_tokens_total{kind="output"} 12.0',
        ):
            assert wait_until(lambda text=expected: text in httpx.get(f"{url}/metrics").text)


def test_a_full_disk_makes_a_batch_wait_and_is_told(
    batch_app, says, tmp_path, monkeypatch, caplog, capsys
):
    """In the batch, in `batch status`, in metrics and in the log, there once."""
    says("hello world")
    monkeypatch.setattr("muxcluster.batch.service.local.STORAGE_RETRY_S", 0.01)
    monkeypatch.setattr("muxcluster.http.metrics.batches.PERIOD_S", 0.01)
    with mounted(tmp_path / "batches") as disk, client_of(batch_app()) as client:
        url = str(client.base_url).removesuffix("/v1/")

        def has_metric(text: str) -> bool:
            return text in httpx.get(f"{url}/metrics").text

        lines = [line_of(f"r{i}") for i in range(400)]
        file = client.files.create(file=("in.jsonl", b"\n".join(lines)), purpose="batch")
        ballast = fill(disk, 80 << 10)
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        assert wait_until(lambda: client.batches.retrieve(batch.id).errors)
        found = client.batches.retrieve(batch.id)
        (error,) = found.errors.data
        assert found.status in ("validating", "in_progress")
        assert error.code == "storage_full"
        assert "full" in error.message or "No space left" in error.message
        assert str(tmp_path) not in error.message, "a path of the server"
        assert wait_until(lambda: has_metric("muxcluster:batches_waiting_for_disk 1.0"))
        assert not has_metric("muxcluster:batch_storage_failures_total 0.0")
        for arguments in ((), (batch.id,)):
            told = call(capsys, "batch", "status", *arguments, "--url", url)[1]
            assert "cannot store results" in " ".join(told.split()), told
        ballast.unlink()
        found = ended(client, batch.id)
        assert (found.status, found.errors) == ("completed", None)
        assert read_lines(client, found.output_file_id).keys() == {f"r{i}" for i in range(400)}
        assert wait_until(lambda: has_metric("muxcluster:batches_waiting_for_disk 0.0"))
    waits = [record for record in caplog.records if "waits until the disk" in record.message]
    assert len(waits) == 1
    assert str(tmp_path) in waits[0].message, "the log names the file"
    assert not [record for record in caplog.records if record.exc_info]


def test_the_document_has_the_routes(batch_client):
    document = httpx.get(str(batch_client.base_url).replace("/v1/", "/openapi.json")).json()
    form = document["paths"]["/v1/files"]["post"]["requestBody"]["content"]["multipart/form-data"]
    assert form["schema"]["required"] == ["file", "purpose"]
    assert document["components"]["schemas"]["BatchBody"]["required"] == [
        "input_file_id",
        "endpoint",
        "completion_window",
    ]


def test_a_constraint_of_a_line(batch_app, backend, says):
    says('{"age": 7}')
    url = "/v1/chat/completions"
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}

    def wanted(kind):
        schema = {"type": "object", "properties": {"age": {"type": kind}}}
        return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}

    lines = [
        line_of(kind, url=url, body=body | {"response_format": wanted(kind)})
        for kind in ("integer", "integr")
    ]
    with client_of(batch_app()) as client:
        batch = ended(client, submit(client, lines, endpoint=url).id)
        good = read_lines(client, batch.output_file_id)["integer"]["response"]
        bad = read_lines(client, batch.error_file_id)["integr"]["response"]
    (request,) = backend.requests
    schema = wanted("integer")["json_schema"]["schema"]
    assert request.sampling.constraint == Constraint(json_schema(schema, "x"))
    assert good["body"]["choices"][0]["message"]["content"] == '{"age": 7}'
    path = "response_format.json_schema.schema.properties.age.type"
    assert bad["status_code"] == 400 and path in bad["body"]["error"]["message"]
