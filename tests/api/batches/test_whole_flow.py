"""The openai client through the whole flow of a batch."""

import json
import threading

import openai
import pytest

from tests.batch.jobs import line_of

DONE = ("completed", "failed", "expired", "cancelled")


def ended(client, batch_id):
    """The batch once it has ended."""
    pause = threading.Event()
    for _ in range(60_000):
        batch = client.batches.retrieve(batch_id)
        if batch.status in DONE:
            return batch
        pause.wait(0.01)
    raise AssertionError(batch.status)


def submit(client, lines, window="24h", endpoint="/v1/completions", **fields):
    data = b"\n".join(lines)
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window=window, **fields
    )


def results(client, file_id):
    """Lines of a result file by custom_id, each of which must be there once."""
    found = [json.loads(line) for line in client.files.content(file_id).text.splitlines()]
    by_id = {each["custom_id"]: each for each in found}
    assert len(by_id) == len(found)
    return by_id


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
    found = results(batch_client, batch.output_file_id)
    assert found.keys() == {f"r{i}" for i in range(50)}
    response = found["r7"]["response"]
    assert response["status_code"] == 200
    assert response["body"]["object"] == "text_completion"
    assert response["body"]["usage"]["completion_tokens"] == 3


def test_unknown_ids(batch_client):
    with pytest.raises(openai.NotFoundError) as error:
        batch_client.batches.retrieve("batch_none")
    assert error.value.code == "not_found"
    with pytest.raises(openai.NotFoundError):
        batch_client.files.content("file-none")
