"""Batches on a real server: answers, cancelling, and kill -9 of whatever has a part in them."""

import json
import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from openai import APIStatusError, OpenAI

from muxcluster.demo.models import build_model
from tests.cluster.conftest import ServerProcess, held

NAMES = ("llama-a", "qwen-b")
DONE = ("completed", "failed", "expired", "cancelled")
PATIENCE_S = 600.0
POLL_S = 0.1


def _lines(count: int, max_tokens: int, models: Sequence[str] = NAMES) -> list[dict[str, Any]]:
    rng = random.Random(count)
    return [
        {
            "custom_id": f"line-{i}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {
                "model": models[i % len(models)],
                "prompt": [rng.randrange(10, 500) for _ in range(rng.randint(3, 30))],
                "max_tokens": max_tokens,
                "temperature": 0,
                "ignore_eos": True,
            },
        }
        for i in range(count)
    ]


def _submit(client: OpenAI, lines: Sequence[dict[str, Any]], window: str = "1h") -> Any:
    data = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window=window
    )


def _until(client: OpenAI, batch_id: str, num_ended: int | None = None) -> Any:
    """The batch once so many lines have ended, or all; what is not there yet is asked again."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            batch = client.batches.retrieve(batch_id)
        except APIStatusError as error:
            assert error.status_code == 503, error
            batch = None
        if batch is not None:
            if batch.status in DONE:
                return batch
            counts = batch.request_counts
            if num_ended is not None and counts.completed + counts.failed >= num_ended:
                return batch
        assert time.monotonic() < deadline, batch
        time.sleep(POLL_S)


def _results(client: OpenAI, file_id: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]


def test_answers_equal_those_of_the_routes(client: OpenAI) -> None:
    lines = _lines(12, 6)
    batch = _until(client, _submit(client, lines).id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 12)
    texts = {
        each["custom_id"]: each["response"]["body"]["choices"][0]["text"]
        for each in _results(client, batch.output_file_id)
    }
    for line in lines:
        alone = client.completions.create(
            **{name: value for name, value in line["body"].items() if name != "ignore_eos"},
            extra_body={"ignore_eos": True},
        )
        assert texts[line["custom_id"]] == alone.choices[0].text


def test_a_job_is_predicted_and_then_followed(client: OpenAI, url: str) -> None:
    """The tokens foretold are those that it takes, and its events end with its result."""
    data = "\n".join(map(json.dumps, _lines(40, 8))).encode()
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    foretold: Any = client.post("/batches/plan", body={"input_file_id": file.id}, cast_to=object)
    assert foretold["input_file_id"] == file.id
    assert file.id not in {each.input_file_id for each in client.batches.list().data}
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="1h"
    )
    headers = {"Authorization": f"Bearer {client.api_key}"}
    told = []
    with httpx.stream("GET", f"{url}/v1/batches/{batch.id}/events", headers=headers) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                told.append(line.removeprefix("data: "))
    assert told[-1] == "[DONE]"
    last = json.loads(told[-2])
    assert last == client.batches.retrieve(batch.id).model_dump(mode="json", exclude_unset=True)
    assert last["request_counts"] == {"total": 40, "completed": 40, "failed": 0}
    usage = last["usage"]
    assert foretold["prompt_tokens"] == usage["input_tokens"]
    assert foretold["output_tokens"] == usage["output_tokens"] == 40 * 8
    assert {each["model"] for each in foretold["models"]} == set(NAMES)
    assert foretold["duration_s"] > 0


@pytest.mark.slow
def test_cancelling_frees_all_blocks(client: OpenAI, url: str) -> None:
    batch = _submit(client, _lines(200, 400))
    deadline = time.monotonic() + PATIENCE_S
    while not held(url):
        assert time.monotonic() < deadline
        time.sleep(POLL_S)
    client.batches.cancel(batch.id)
    batch = _until(client, batch.id)
    assert batch.status == "cancelled"
    assert batch.request_counts.completed + batch.request_counts.failed == 200
    while held(url):
        assert time.monotonic() < deadline
        time.sleep(POLL_S)


def _kill(server: ServerProcess, name: bytes) -> None:
    """SIGKILL to the server's process whose command line begins so."""
    for pid in server.processes():
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(name):
            os.kill(pid, signal.SIGKILL)
            return
    raise AssertionError(f"no {name!r}")


@pytest.mark.slow
def test_every_line_ends_once_whoever_is_killed(tmp_path: Path) -> None:
    for seed, (name, family) in enumerate(zip(NAMES, ("llama", "qwen3"), strict=True)):
        build_model(tmp_path / name, family, seed=seed)
    models = [{"name": name, "path": name} for name in NAMES]
    config = tmp_path / "muxcluster.yaml"
    content = {"models": models, "policy": {"sharing": "always"}, "batch": {"max_running": 16}}
    config.write_text(yaml.safe_dump(content))
    lines = _lines(400, 16)
    first = ServerProcess("serve", str(config), "--port", "0")
    try:
        with OpenAI(base_url=f"{first.url()}/v1", api_key="k", max_retries=5) as client:
            batch = _submit(client, lines)
            for num_ended, victim in ((40, b"ray::BatchHost"), (90, b"ray::UnitHost")):
                assert _until(client, batch.id, num_ended).status == "in_progress"
                _kill(first, victim)
            _until(client, batch.id, 140)
        first.stop(signal.SIGKILL)
        first.assert_gone(set())
    finally:
        if first.process.poll() is None:
            first.stop()
    second = ServerProcess("serve", str(config), "--port", "0")
    try:
        with OpenAI(base_url=f"{second.url()}/v1", api_key="k", max_retries=5) as client:
            _until(client, batch.id, 200)
            _kill(second, b"ray::BatchHost")
            batch = _until(client, batch.id)
            assert (batch.status, batch.request_counts.completed) == ("completed", 400)
            names = [each["custom_id"] for each in _results(client, batch.output_file_id)]
            assert sorted(names) == sorted(line["custom_id"] for line in lines)
            assert batch.error_file_id is None
        living = second.processes()
        assert second.stop() == 0
        second.assert_gone(living)
    finally:
        if second.process.poll() is None:
            second.stop()
