"""A long batch over two replicas in Ray: kill -9 of all that has a part in it, and a node lost."""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import APIError, OpenAI

from muxcluster.demo.models import build_model
from tests.cluster.ray_cluster import RayCluster, free_port

COUNT = 10_000
NUM_FAMILIES = 200
PATIENCE_S = 1500.0
POLL_S = 0.2
DONE = ("completed", "failed", "expired", "cancelled")


def _job() -> bytes:
    rng = random.Random(0)
    heads = [[rng.randrange(10, 500) for _ in range(32)] for _ in range(NUM_FAMILIES)]
    lines = []
    for number in range(COUNT):
        prompt = heads[rng.randrange(NUM_FAMILIES)] + [rng.randrange(10, 500) for _ in range(4)]
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 4, "temperature": 0}
        lines.append(
            {
                "custom_id": f"line-{number}",
                "method": "POST",
                "url": "/v1/completions",
                "body": {**body, "ignore_eos": True},
            }
        )
    return "\n".join(map(json.dumps, lines)).encode()


def _until(client: OpenAI, batch_id: str, num_ended: int | None = None) -> Any:
    """The batch once so many lines have ended, or all."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            batch = client.batches.retrieve(batch_id)
        except APIError:
            batch = None  # its process is away
        if batch is not None:
            counts = batch.request_counts
            num = counts.completed + counts.failed
            if batch.status in DONE or (num_ended is not None and num >= num_ended):
                return batch
        assert time.monotonic() < deadline, batch
        time.sleep(POLL_S)


def _kill(cluster: RayCluster, is_it: Callable[[bytes], bool]) -> None:
    """SIGKILL to one of the cluster's processes."""
    for node in cluster.nodes.values():
        for pid in sorted(node.processes()):
            if is_it(Path(f"/proc/{pid}/cmdline").read_bytes()):
                os.kill(pid, signal.SIGKILL)
                return
    raise AssertionError("no such process")


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_ten_thousand_lines_end_once_each_whoever_is_killed(tmp_path: Path) -> None:
    path = build_model(tmp_path / "tiny", "llama", seed=0)
    port = free_port()
    file = tmp_path / "muxcluster.yaml"
    # a rate that takes both GPUs
    model = {"name": "tiny", "path": str(path), "rate": 1e5, "prompt_tokens": 36}
    content = {
        "models": [{**model, "output_tokens": 4}],
        "cluster": {"engine": "cpu"},
        "policy": {"partition": "none", "kv_gb": 0.05, "num_threads": 1, "replan": "off"},
        "server": {"port": port, "ingresses": "head"},
        "batch": {"directory": str(tmp_path / "batches")},
    }
    file.write_text(yaml.safe_dump(content))
    cluster = RayCluster()
    try:
        for name in ("one", "two"):
            cluster.add(name, 1)
        cluster.command("up", str(file), "--yes")
        assert len(cluster.status()["units"]) == 2
        url = f"http://127.0.0.1:{port}/v1"
        with OpenAI(base_url=url, api_key="k", max_retries=5) as client:
            given = client.files.create(file=("in.jsonl", _job()), purpose="batch")
            batch = client.batches.create(
                input_file_id=given.id, endpoint="/v1/completions", completion_window="24h"
            )
            _until(client, batch.id, 1)
            _kill(cluster, lambda command: b"muxcluster.offline.process.worker" in command)
            _until(client, batch.id, 1000)
            _kill(cluster, lambda command: command.startswith(b"ray::UnitHost"))
            _until(client, batch.id, 2500)
            _kill(cluster, lambda command: command.startswith(b"ray::BatchHost"))
            assert _until(client, batch.id, 4000).status == "in_progress"
            # a replica is lost with its node: its lines go on in the other one
            cluster.kill_raylet("two")
            batch = _until(client, batch.id)
            assert (batch.status, batch.request_counts.completed) == ("completed", COUNT)
            assert batch.error_file_id is None
            text = client.files.content(batch.output_file_id).text
            names = [json.loads(line)["custom_id"] for line in text.splitlines()]
            assert sorted(names) == sorted(f"line-{number}" for number in range(COUNT))
    finally:
        cluster.close()
