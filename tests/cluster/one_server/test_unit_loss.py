"""kill -9 of the unit in the middle of seeded sampled streams: nobody sees more than a pause."""

import asyncio
import json
import os
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI
from prometheus_client.parser import text_string_to_metric_families

from muxcluster.cli.main import run

NAMES = ("llama-a", "qwen-b", "opt-c")
NUM_STREAMS = 16
NUM_TOKENS = 96


def _get(url: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()


def _ends(url: str) -> dict[str, float]:
    """Requests by how they ended, over all models."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(_get(f"{url}/metrics")[1].decode()):
        for sample in family.samples:
            if sample.name == "vllm:request_success_total":
                reason = sample.labels["finished_reason"]
                found[reason] = found.get(reason, 0) + sample.value
            elif sample.name in (
                "vllm:admission_rejections_total",
                "muxcluster:request_recoveries_total",
            ):
                found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


async def _stream(client: AsyncOpenAI, index: int, seen: list[int]) -> dict[str, Any]:
    """One sampled stream with every rule that counts output; `seen` counts its events."""
    stream: Any = await client.completions.create(
        model=NAMES[index % 3],
        prompt=f"Stream {index} says: " + "word " * (index % 7),
        max_tokens=NUM_TOKENS,
        temperature=1.0,
        top_p=0.95,
        seed=1000 + index,
        frequency_penalty=0.4,
        presence_penalty=0.2,
        logprobs=2,
        echo=index % 4 == 0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"min_tokens": NUM_TOKENS // 2, "repetition_penalty": 1.1},
        extra_headers={"X-Muxcluster-Timing": "1"},
    )
    text, tokens, logprobs, reason, usage = "", [], [], None, None
    async for chunk in stream:
        seen[index] += 1
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.text
            reason = choice.finish_reason or reason
            if choice.logprobs is not None:
                tokens += choice.logprobs.tokens
                logprobs += choice.logprobs.token_logprobs
    assert usage is not None
    timing = usage.model_extra.pop("timing")
    return {
        "text": text,
        "tokens": tokens,
        "logprobs": [-1.0 if value is None else value for value in logprobs],
        "reason": reason,
        "usage": (usage.prompt_tokens, usage.completion_tokens),
        "timing": timing,
    }


async def _streams(url: str, seen: list[int]) -> list[dict[str, Any]]:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        return await asyncio.gather(*(_stream(client, i, seen) for i in range(NUM_STREAMS)))


def _unit(server: Any) -> int:
    found = [
        pid
        for pid in server.processes()
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::UnitHost")
    ]
    assert len(found) == 1
    return found[0]


async def _disturbed(server: Any, url: str) -> tuple[list[dict[str, Any]], list[tuple[int, int]]]:
    """The streams, whose unit is killed in their middle, and (health, ready) until they end."""
    seen, states = [0] * NUM_STREAMS, []
    running = asyncio.create_task(_streams(url, seen))
    while min(seen) < 5:
        assert not running.done()
        await asyncio.sleep(0.005)
    os.kill(_unit(server), signal.SIGKILL)
    while not running.done():
        answers = [await asyncio.to_thread(_get, f"{url}/{path}") for path in ("health", "ready")]
        states.append((answers[0][0], answers[1][0]))
        await asyncio.sleep(0.05)
    return await running, states


@pytest.fixture(scope="module")
def runs(server: Any, url: str) -> Any:
    """(undisturbed results, disturbed results, states meanwhile, ends before and after)."""
    undisturbed = asyncio.run(_streams(url, [0] * NUM_STREAMS))
    before = _ends(url)
    disturbed, states = asyncio.run(_disturbed(server, url))
    return undisturbed, disturbed, states, before, _ends(url)


def test_every_stream_ends_with_the_undisturbed_tokens(runs: Any) -> None:
    undisturbed, disturbed = runs[:2]
    assert {result["reason"] for result in undisturbed} <= {"length", "stop"}
    for before, after in zip(undisturbed, disturbed, strict=True):
        for key in ("text", "tokens", "reason", "usage"):
            assert after[key] == before[key]
        # batches of other sizes differ in the last bits
        assert after["logprobs"] == pytest.approx(before["logprobs"], abs=1e-3)


def test_the_restart_is_in_the_servers_output(runs: Any, server: Any) -> None:
    server.wait_for(
        r"controller \| .*local-0\.1: ready is starting(?s:.)*"
        r"controller \| .*local-0\.1: starting is loading(?s:.)*"
        r"controller \| .*local-0\.1: loading is ready"
    )
    started = r"local-0\.1 \| .*local-0\.1: its processes are ready"
    server.wait_for(rf"{started}(?s:.)*{started}")


def test_health_holds_and_readiness_does_not(runs: Any) -> None:
    states = runs[2]
    assert {health for health, _ in states} == {200}
    assert 503 in {ready for _, ready in states}


def test_readiness_returns(runs: Any, url: str) -> None:
    deadline = time.monotonic() + 30.0
    while _get(f"{url}/ready")[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_live_view_saw_the_unit_go_and_come_back(
    runs: Any, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    live = json.loads(_get(f"{url}/v1/cluster/live")[1])
    states = [each for each in live["events"] if each["what"] == "state"]
    changes = [each for each in states if each["unit"]]  # others are of the server
    assert {each["unit"] for each in changes} == {"local-0.1"}
    assert changes[0]["after"] == "up"  # the newest
    lost = {each["after"] for each in changes if each["before"] == "up"}
    assert lost and lost <= {"unreachable", "recovering"}
    (unit,) = live["units"]
    assert (unit["state"], unit["node"], unit["phase"]) == ("up", "local", "ready")
    assert {series["model"] for series in unit["sm"]["series"]} <= set(NAMES)
    assert {model["recent"]["num_failed"] for model in live["models"]} == {0}
    assert run(["top", "--once", "--url", url]) == 0
    shown = capsys.readouterr().out
    assert "1 of 1 units up" in shown and all(name in shown for name in NAMES)


@pytest.mark.slow
def test_a_lost_owner_is_in_the_servers_output(runs: Any, server: Any, url: str) -> None:
    """The unit itself goes on, so that it is the one that says so."""
    (owner,) = (
        pid for pid in server.processes() if Path(f"/proc/{pid}/comm").read_text() == "mux-owner\n"
    )
    os.kill(owner, signal.SIGKILL)
    server.wait_for(
        r"local-0\.1 \| .* loads again: the memory owner of local-0\.1 died(?s:.)*"
        r"local-0\.1 \| .*local-0\.1: its processes are ready"
    )
    with OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        answer = client.completions.create(model=NAMES[0], prompt="again", max_tokens=2)
    assert answer.choices[0].finish_reason


def test_the_time_is_accounted_for(runs: Any) -> None:
    undisturbed, disturbed = runs[:2]
    for result in (*undisturbed, *disturbed):
        timing = dict(result["timing"])
        total_s = timing.pop("total_s")
        assert sum(timing.values()) == pytest.approx(total_s)
        assert all(seconds >= -0.001 for seconds in timing.values()), timing
    assert all(result["timing"]["recovery_s"] < 0.05 for result in undisturbed)
    lost = [result for result in disturbed if result["timing"]["recovery_s"] > 0.05]
    assert len(lost) > NUM_STREAMS // 2


def test_the_counters_agree(runs: Any) -> None:
    before, after = runs[3:]
    grown = {key: after[key] - before[key] for key in after}
    assert grown["length"] + grown["stop"] == NUM_STREAMS
    assert grown["error"] == grown["abort"] == grown["vllm:admission_rejections_total"] == 0
    assert NUM_STREAMS // 2 < grown["muxcluster:request_recoveries_total"] <= NUM_STREAMS


def test_no_block_is_left_behind(runs: Any, url: str) -> None:
    deadline = time.monotonic() + 30.0
    while True:
        (unit,) = json.loads(_get(f"{url}/status")[1])["units"]
        used = [model["used_blocks"] for model in unit["models"]]
        if used == [0, 0, 0]:
            return
        assert time.monotonic() < deadline, used
        time.sleep(0.2)
