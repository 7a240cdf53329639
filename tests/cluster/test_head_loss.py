"""A head whose tables are in Redis: killed with all its processes, and started again at its
address. Units on other nodes stay, the controller goes on, a batch ends once."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import APIError, OpenAI

from tests.cluster.ray_cluster import RayCluster, free_port, write_config
from tests.cluster.redis_server import RedisServer, why_no_redis

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(why_no_redis() is not None, reason=str(why_no_redis())),
]

NAMES = ("llama-a", "qwen-b", "opt-c")
NUM_LINES = 3000
PATIENCE_S = 600.0
AWAY_S = 15.0  # for which the head is away
DONE = ("completed", "failed", "expired", "cancelled")


@dataclass(frozen=True, slots=True)
class Running:
    """A head without GPUs and a worker with all units."""

    cluster: RayCluster
    url: str


@pytest.fixture(scope="module")
def running(
    model_dirs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("head")
    port = free_port()
    file = write_config(folder / "muxcluster.yaml", model_dirs, port, replan="off")
    content = yaml.safe_load(file.read_text())
    content["batch"] = {"directory": str(folder / "batches")}
    file.write_text(yaml.safe_dump(content))
    patience = {"RAY_gcs_rpc_server_reconnect_timeout_s": "600"}
    with RedisServer(folder, free_port()) as redis:
        cluster = RayCluster(environment=patience, redis=redis)
        try:
            cluster.add("one", 2)
            cluster.command("up", str(file), "--yes")
            yield Running(cluster, f"http://127.0.0.1:{port}/v1")
        finally:
            cluster.close()


def lines() -> bytes:
    bodies = (
        {
            "model": NAMES[number % 3],
            "prompt": f"Line {number} says",
            "max_tokens": 8,
            "temperature": 0,
            "ignore_eos": True,
        }
        for number in range(NUM_LINES)
    )
    rows = (
        {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/completions", "body": body}
        for number, body in enumerate(bodies)
    )
    return "\n".join(map(json.dumps, rows)).encode()


def until(client: OpenAI, batch_id: str, num_ended: int | None = None) -> Any:
    """Return the batch once so many lines have ended, or all."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            batch = client.batches.retrieve(batch_id)
        except APIError:
            batch = None
        if batch is not None:
            counts = batch.request_counts
            if batch.status in DONE or (
                num_ended is not None and counts.completed + counts.failed >= num_ended
            ):
                return batch
        assert time.monotonic() < deadline, batch
        time.sleep(0.2)


def answer(client: OpenAI) -> list[str]:
    """What each model says."""
    return [
        client.completions.create(
            model=name, prompt="x", max_tokens=16, temperature=0, extra_body={"ignore_eos": True}
        )
        .choices[0]
        .text
        for name in NAMES
    ]


def until_healthy(running: Running) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            state = running.cluster.status()
        except ValueError:  # nobody answers, so nothing is printed
            state = {"healthy": False}
        if state["healthy"]:
            return state
        assert time.monotonic() < deadline, state
        time.sleep(1.0)


def test_a_head_that_is_killed_comes_back_to_units_that_have_stayed(running: Running) -> None:
    cluster = running.cluster
    units = cluster.pids("ray::UnitHost")
    names = {unit["id"] for unit in cluster.status()["units"]}
    with OpenAI(base_url=running.url, api_key="k", max_retries=0) as client:
        said = answer(client)
        given = client.files.create(file=("in.jsonl", lines()), purpose="batch")
        batch = client.batches.create(
            input_file_id=given.id, endpoint="/v1/completions", completion_window="24h"
        )
        until(client, batch.id, 100)
        cluster.kill_head()
        time.sleep(AWAY_S)
        assert cluster.pids("ray::UnitHost") == units
        cluster.start_head()
        state = until_healthy(running)
        assert {unit["id"] for unit in state["units"]} == names
        assert cluster.pids("ray::UnitHost") == units
        batch = until(client, batch.id)
        assert (batch.status, batch.request_counts.completed) == ("completed", NUM_LINES)
        text = client.files.content(batch.output_file_id).text
        found = [json.loads(line)["custom_id"] for line in text.splitlines()]
        assert sorted(found) == sorted(f"line-{number}" for number in range(NUM_LINES))
        assert answer(client) == said
    for pid in units:
        os.kill(pid, 0)
