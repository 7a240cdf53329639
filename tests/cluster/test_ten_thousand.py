"""10,000 concurrent requests over real sockets against a real server with bounded queues."""

import asyncio
import json
import re
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

NUM_REQUESTS = 10_000
NUM_TOKENS = 4
NAMES = ("llama-a", "qwen-b", "opt-c")
LIMIT = 64


@pytest.fixture(scope="module")
def bounded(start_server: Any, config_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server of its own, whose queues are short."""
    config = yaml.safe_load(config_file.read_text())
    config["server"] = {"max_queued": LIMIT, "request_timeout_s": 300.0}
    file = tmp_path_factory.mktemp("bounded") / "muxcluster.yaml"
    file.write_text(yaml.safe_dump(config))
    server = start_server("serve", str(file), "--port", "0")
    server.url()
    return server


async def _post(host: str, port: int, index: int, gate: asyncio.Event) -> tuple[int, str, Any]:
    """(status, Retry-After, body) of one request on a connection of its own."""
    fields = {"model": NAMES[index % 3], "prompt": f"Number {index}", "max_tokens": NUM_TOKENS}
    body = json.dumps({**fields, "ignore_eos": True}).encode()
    reader, writer = await asyncio.open_connection(host, port)
    await gate.wait()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
    head += "Content-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    answer = await reader.read()
    writer.close()
    head, _, payload = answer.decode().partition("\r\n\r\n")
    retry = re.search(r"(?i)retry-after: (\S+)", head)
    return int(head.split()[1]), retry[1] if retry else "", json.loads(payload)


async def _all(url: str) -> list[tuple[int, str, Any]]:
    """All connections are open before the first request is sent."""
    host, port = url.removeprefix("http://").split(":")
    gate = asyncio.Event()
    tasks = []
    for index in range(NUM_REQUESTS):
        tasks.append(asyncio.create_task(_post(host, int(port), index, gate)))
        if index % 200 == 199:
            await asyncio.sleep(0.05)
    gate.set()
    return await asyncio.gather(*tasks)


def _counted(url: str) -> Counter[str]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    found: Counter[str] = Counter()
    for line in lines:
        if line.startswith("vllm:request_success_total{"):
            reason = re.search(r'finished_reason="(\w+)"', line)
            assert reason is not None
            found[reason[1]] += int(float(line.rsplit(" ", 1)[1]))
        elif line.startswith("vllm:admission_rejections_total{"):
            found["rejected"] += int(float(line.rsplit(" ", 1)[1]))
    return +found


def _resident_mb(pids: set[int]) -> float:
    total = 0
    for pid in pids:
        statm = Path(f"/proc/{pid}/statm")
        total += int(statm.read_text().split()[1]) if statm.exists() else 0
    return total * 4096 / 2**20


@pytest.mark.slow
def test_overflow_is_refused_and_the_accepted_finish(bounded: Any) -> None:
    url = bounded.url()
    before_mb = _resident_mb(bounded.processes())
    answers = asyncio.run(_all(url))
    grown_mb = _resident_mb(bounded.processes()) - before_mb
    by_status = Counter(status for status, _, _ in answers)
    assert set(by_status) == {200, 429}
    assert by_status[200] >= 3 * LIMIT
    for status, retry_after, body in answers:
        if status == 429:
            assert 1 <= int(retry_after) <= 60
            assert body["error"]["code"] == "rate_limit_exceeded"
        else:
            assert body["usage"]["completion_tokens"] == NUM_TOKENS
    assert _counted(url) == {"length": by_status[200], "rejected": by_status[429]}
    assert grown_mb < 500
