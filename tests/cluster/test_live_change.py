"""Streams of the openai client while the cluster under them changes: none fails, none differs."""

import asyncio
import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import AsyncOpenAI

from tests.cluster.ray_cluster import RayCluster, free_port, write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NAMES = ("llama-a", "qwen-b", "opt-c")
NUM_STREAMS = 12
NUM_TOKENS = 300
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Running:
    """Two workers with two declared GPUs each, what `up` made of them, and undisturbed streams."""

    cluster: RayCluster
    file: Path
    url: str
    undisturbed: Sequence[Any]


@pytest.fixture(scope="module")
def running(
    model_dirs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    port = free_port()
    file = write_config(
        tmp_path_factory.mktemp("live") / "muxcluster.yaml", model_dirs, port, replan="off"
    )
    cluster = RayCluster()
    try:
        for name in ("one", "two"):
            cluster.add(name, 2)
        cluster.command("up", str(file), "--yes")
        url = f"http://127.0.0.1:{port}/v1"
        yield Running(cluster, file, url, asyncio.run(_streams(url, [0] * NUM_STREAMS)))
    finally:
        cluster.close()


async def _stream(client: AsyncOpenAI, index: int, seen: list[int]) -> tuple[str, int, str | None]:
    """One greedy stream; `seen` counts its events."""
    stream = await client.completions.create(
        model=NAMES[index % 3],
        prompt=f"Stream {index} says: " + "word " * (index % 7),
        max_tokens=NUM_TOKENS,
        temperature=0.0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    text, num_tokens, reason = "", 0, None
    async for chunk in stream:
        seen[index] += 1
        num_tokens = num_tokens if chunk.usage is None else chunk.usage.completion_tokens
        for choice in chunk.choices:
            text += choice.text
            reason = choice.finish_reason or reason
    return text, num_tokens, reason


async def _streams(url: str, seen: list[int]) -> list[tuple[str, int, str | None]]:
    async with AsyncOpenAI(base_url=url, api_key="unused", max_retries=0, timeout=600) as client:
        return await asyncio.gather(*(_stream(client, i, seen) for i in range(NUM_STREAMS)))


async def _disturbed(url: str, disturb: Callable[[], object]) -> list[tuple[str, int, str | None]]:
    """The streams, with `disturb` called in their middle."""
    seen = [0] * NUM_STREAMS
    running = asyncio.create_task(_streams(url, seen))
    while min(seen) < 5:
        assert not running.done()
        await asyncio.sleep(0.01)
    await asyncio.to_thread(disturb)
    return await running


def _check(running: Running, disturb: Callable[[], object]) -> None:
    found = asyncio.run(_disturbed(running.url, disturb))
    assert {(num, reason) for _, num, reason in found} == {(NUM_TOKENS, "length")}
    assert found == list(running.undisturbed)


def _units(running: Running) -> dict[str, str]:
    return {unit["id"]: unit["node"] for unit in running.cluster.status()["units"]}


def _until_healthy(running: Running) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE_S
    while not (state := running.cluster.status())["healthy"]:
        assert time.monotonic() < deadline, state
    return state


def _kill(pids: set[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def test_a_killed_controller_goes_on_and_units_never_notice(running: Running) -> None:
    units, processes = _units(running), running.cluster.pids("ray::UnitHost")
    (controller,) = running.cluster.pids("ray::Controller")
    _check(running, lambda: _kill({controller}))
    _until_healthy(running)
    assert running.cluster.pids("ray::Controller") != {controller}
    assert _units(running) == units and running.cluster.pids("ray::UnitHost") == processes


def test_a_killed_serve_controller_cuts_no_stream(running: Running) -> None:
    _check(running, lambda: _kill(running.cluster.pids("ray::ServeController")))
    _until_healthy(running)


def test_killed_units_come_back_under_their_names(running: Running) -> None:
    units, processes = _units(running), running.cluster.pids("ray::UnitHost")
    _check(running, lambda: _kill(processes))
    _until_healthy(running)
    assert _units(running) == units
    assert running.cluster.pids("ray::UnitHost").isdisjoint(processes)


def test_a_hung_unit_is_replaced(running: Running) -> None:
    def hang() -> None:
        os.kill(min(running.cluster.pids("ray::UnitHost")), signal.SIGSTOP)

    before = _units(running)
    _check(running, hang)
    _until_healthy(running)
    assert len(set(before) - set(_units(running))) == 1


def test_an_edited_file_changes_units_one_by_one(running: Running) -> None:
    content = yaml.safe_load(running.file.read_text())
    content["policy"]["kv_gb"] = 0.06
    running.file.write_text(yaml.safe_dump(content))
    before = _units(running)
    _check(running, lambda: running.cluster.command("up", str(running.file), "--yes"))
    assert set(before).isdisjoint(_units(running))
    assert "nothing to change" in running.cluster.command("up", str(running.file))


def test_models_of_a_killed_node_are_placed_on_what_is_left(running: Running) -> None:
    _check(running, lambda: running.cluster.kill_raylet("two"))
    state = _until_healthy(running)
    assert {unit["node"] for unit in state["units"]} == {"one"}
    assert {node["name"]: node["alive"] for node in state["nodes"]}["two"] is False
    assert {m["name"] for unit in state["units"] for m in unit["models"]} == set(NAMES)
    running.cluster.add("two", 2)
    _until_healthy(running)
    _check(running, lambda: None)


def _refusal(running: Running, model: str) -> tuple[int, str | None]:
    """(status, Retry-After) of a new request."""
    request = urllib.request.Request(
        f"{running.url}/completions",
        json.dumps({"model": model, "prompt": "x", "max_tokens": 1}).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, None
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.headers["Retry-After"]


def test_models_without_a_place_say_when_to_come_back_and_are_placed_again(
    running: Running,
) -> None:
    for name in ("one", "two"):
        running.cluster.kill_raylet(name)
    deadline = time.monotonic() + PATIENCE_S
    while (state := running.cluster.status())["unplaced"] != sorted(NAMES):
        assert time.monotonic() < deadline, state
    assert not state["healthy"] and not any(unit["healthy"] for unit in state["units"])
    for model in NAMES:
        while (answer := _refusal(running, model)) != (503, "30"):
            assert time.monotonic() < deadline, answer
    running.cluster.add("three", 2)
    state = _until_healthy(running)
    assert {unit["node"] for unit in state["units"]} == {"three"}
    _check(running, lambda: None)
