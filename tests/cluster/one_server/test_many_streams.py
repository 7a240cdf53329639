"""64 streams over three models at once, a third cut by their clients: no block is left behind."""

import asyncio
import json
import time
import urllib.request
from typing import Any

from openai import AsyncOpenAI

NAMES = ("llama-a", "qwen-b", "opt-c")
NUM_STREAMS = 64
NUM_TOKENS = 32


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


async def _stream(client: AsyncOpenAI, index: int) -> tuple[int, str | None]:
    """(output tokens, finish reason) of one stream; every third hangs up after its third chunk."""
    stream: Any = await client.chat.completions.create(
        model=NAMES[index % 3],
        messages=[{"role": "user", "content": f"Number {index}: " + "word " * (index % 20)}],
        max_tokens=NUM_TOKENS,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    num_chunks, num_tokens, reason = 0, 0, None
    async for chunk in stream:
        num_chunks += 1
        if chunk.choices:
            reason = chunk.choices[0].finish_reason or reason
        if chunk.usage is not None:
            num_tokens = chunk.usage.completion_tokens
        if index // 3 % 3 == 0 and num_chunks == 3:
            await stream.close()
            return 0, "hung up"
    return num_tokens, reason


async def _all(url: str) -> list[tuple[int, str | None]]:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        return await asyncio.gather(*(_stream(client, index) for index in range(NUM_STREAMS)))


def _models(url: str) -> list[dict[str, Any]]:
    return [model for unit in _get(f"{url}/status")["units"] for model in unit["models"]]


def test_every_stream_ends_and_every_block_is_free(url: str) -> None:
    results = asyncio.run(_all(url))
    hung_up = [result for result in results if result[1] == "hung up"]
    served = [result for result in results if result[1] != "hung up"]
    assert NUM_STREAMS // 4 < len(hung_up) < NUM_STREAMS // 2
    assert served == [(NUM_TOKENS, "length")] * len(served)

    deadline = time.monotonic() + 30.0
    while any(model["running"] or model["waiting"] for model in _models(url)):
        assert time.monotonic() < deadline, _models(url)
        time.sleep(0.2)
    unit = _get(f"{url}/status")["units"][0]
    assert [model["used_blocks"] for model in unit["models"]] == [0, 0, 0]
    # What the prefix cache keeps is unreferenced; the rest is on the free list.
    cached = sum(model["cached_blocks"] for model in unit["models"])
    assert unit["free_blocks"] + cached == unit["num_blocks"]


def _running(url: str) -> list[float]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.startswith("vllm:num_requests_running{")]
    return [float(line.rsplit(" ", 1)[1]) for line in found]


def test_the_metrics_agree(url: str) -> None:
    deadline = time.monotonic() + 30.0
    while _running(url) != [0.0, 0.0, 0.0]:  # units report twice a second
        assert time.monotonic() < deadline, _running(url)
        time.sleep(0.2)


def test_the_timeline_tells_of_prefill_and_decode_of_every_model(url: str) -> None:
    jobs = [job for unit in _get(f"{url}/timeline").values() for job in unit]
    assert {job["model"] for job in jobs} == set(NAMES)
    assert {job["phase"] for job in jobs} >= {"prefill", "decode"}
    assert all(job["end_s"] >= job["start_s"] and 0 < job["share"] <= 1 for job in jobs)
