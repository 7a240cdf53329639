"""Interactive streams while a large batch runs through the same server: nobody gets an error."""

import asyncio
import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

NAMES = ("llama-a", "opt-c")
NUM_STREAMS, NUM_BATCH = 200, 2000
STREAM_TOKENS, BATCH_TOKENS = 24, 12
AT_A_TIME = 8
"""Interactive streams that are open together."""
PARTS = ("queue_s", "prefill_s", "decode_s", "preempted_s", "restore_s", "recovery_s")


@pytest.fixture(scope="module")
def hybrid(
    start_server: Any, model_dirs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """A server with targets, and a pool that batch requests overfill."""
    models = [
        {
            "name": name,
            "path": str(model_dirs[name]),
            "rate": 1.0,
            "prompt_tokens": 32,
            "output_tokens": 32,
            "max_seqs": 64,
            "max_model_len": 256,
            "slo": {"ttft": 2.0, "tpot": 0.5},
        }
        for name in NAMES
    ]
    policy = {"packing": "hybrid", "kv_gb": 0.016, "host_memory_gib": 0.1}
    file = tmp_path_factory.mktemp("hybrid") / "muxcluster.yaml"
    file.write_text(yaml.safe_dump({"models": models, "policy": policy}))
    server = start_server("serve", str(file), "--port", "0")
    server.url()
    return server


def _fields(index: int, num_tokens: int) -> dict[str, Any]:
    return {
        "model": NAMES[index % len(NAMES)],
        "prompt": f"Number {index}: " + "word " * (5 + index % 20),
        "max_tokens": num_tokens,
        "ignore_eos": True,
    }


def _check(usage: dict[str, Any], num_tokens: int, since_s: float) -> dict[str, float]:
    """All tokens came, and the account of time adds up to no more than the client measured."""
    assert usage["completion_tokens"] == num_tokens
    timing: dict[str, float] = usage["timing"]
    parts = [timing[name] for name in PARTS]
    assert min(parts) >= 0
    # What the unit does not account for is time too: of the network, and of the ingress.
    assert timing["framework_s"] >= -1e-3
    assert timing["total_s"] <= time.perf_counter() - since_s
    assert sum(parts) + timing["framework_s"] == pytest.approx(timing["total_s"], abs=1e-6)
    return timing


async def _stream(client: httpx.AsyncClient, index: int) -> dict[str, float]:
    body = {**_fields(index, STREAM_TOKENS), "stream": True}
    body["stream_options"] = {"include_usage": True}
    usage, reasons, text, since_s = None, [], "", time.perf_counter()
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            assert "error" not in chunk, chunk
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                text += choice["text"]
                reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert reasons == ["length"]
    assert text
    assert usage is not None
    return _check(usage, STREAM_TOKENS, since_s)


async def _batch_request(client: httpx.AsyncClient, index: int) -> dict[str, float]:
    body = {**_fields(index, BATCH_TOKENS), "service_tier": "flex"}
    since_s = time.perf_counter()
    answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    return _check(answer.json()["usage"], BATCH_TOKENS, since_s)


async def _both(url: str) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """All batch requests are sent at once; streams follow each other until all have run."""
    limits = httpx.Limits(max_connections=None)
    headers = {"x-muxcluster-timing": "1"}
    async with httpx.AsyncClient(
        base_url=url, timeout=1800.0, limits=limits, headers=headers
    ) as client:
        batch = [asyncio.create_task(_batch_request(client, i)) for i in range(NUM_BATCH)]
        await asyncio.sleep(1.0)
        gate = asyncio.Semaphore(AT_A_TIME)

        async def stream(index: int) -> dict[str, float]:
            async with gate:
                return await _stream(client, index)

        streams = await asyncio.gather(*(stream(i) for i in range(NUM_STREAMS)))
        return streams, await asyncio.gather(*batch)


def _counted(url: str, name: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name}{{"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_streams_beside_a_large_batch(hybrid: Any) -> None:
    """Some blocks are lent meanwhile, saved and restored."""
    url = hybrid.url()
    streams, batch = asyncio.run(_both(url))
    assert (len(streams), len(batch)) == (NUM_STREAMS, NUM_BATCH)
    assert _counted(url, "vllm:request_success_total") == NUM_STREAMS + NUM_BATCH
    assert _counted(url, "vllm:admission_rejections_total") == 0
    assert _counted(url, "muxcluster:saved_slots_total") > 0
    assert _counted(url, "muxcluster:restored_slots_total") > 0
