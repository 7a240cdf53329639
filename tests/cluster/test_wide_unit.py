"""A unit of two ranks behind HTTP, whose processes are killed amid streams: nobody sees more than a
pause."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import AsyncOpenAI

from muxcluster.cli.server.launch import Prepared, free_address, serving, url_of
from muxcluster.cluster.ingress.serve_app import ingresses_of
from muxcluster.cluster.state.fitting import desired_of
from muxcluster.config.load import load_config
from muxcluster.config.planner_input import nodes_of
from muxcluster.demo.models import build_model
from muxcluster.placement.plan import Plan, PlannedModel, PlannedUnit
from tests.cluster.conftest import _descendants

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    # Ray, which starts in this process, warns of its own settings.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

FAMILIES = {"llama-a": "llama", "qwen-b": "qwen2"}
NUM_STREAMS, NUM_TOKENS = 8, 64


def planned(names: list[str]) -> Plan:
    """All models on one mesh of two GPUs."""
    models = tuple(
        PlannedModel(
            name=name, prefill_sm=0.5, decode_sm=0.5, batch=1.0, quota_blocks=2000, throughput=1.0
        )
        for name in names
    )
    unit = PlannedUnit(id="wide", node="here", gpus=(0, 1), tp=2, kv_blocks=4000, models=models)
    return Plan(
        method="given",
        objective="throughput",
        score=1.0,
        throughput=2.0,
        bound=None,
        solve_seconds=0.0,
        units=(unit,),
    )


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("wide")
    content = {
        "models": [
            {
                "name": name,
                "path": str(build_model(root / name, family, seed=seed)),
                "rate": 1.0,
                "prompt_tokens": 32,
                "output_tokens": 32,
            }
            for seed, (name, family) in enumerate(FAMILIES.items())
        ],
        # The GPUs are only declared; two threads a rank make two workers.
        "cluster": {"nodes": [{"name": "here", "gpus": 2, "gpu": "L4"}], "engine": "cpu"},
        "policy": {"sharing": "always", "num_threads": 4},
    }
    file = root / "muxcluster.yaml"
    file.write_text(yaml.safe_dump(content))
    config = load_config(file)
    desired = desired_of(config, planned(list(FAMILIES)), nodes_of(config))
    (spec,) = (target.spec for target in desired.targets)
    assert (spec.tp, spec.partition, len(spec.workers)) == (2, "threads", 2)
    prepared = Prepared(desired, ingresses_of(config))
    prepared = prepared.listening(free_address(prepared.address))
    with serving(prepared):
        yield url_of(prepared.address)


async def _stream(client: AsyncOpenAI, index: int, seen: list[int]) -> tuple[Any, ...]:
    """One sampled stream; `seen` counts its events."""
    stream: Any = await client.completions.create(
        model=list(FAMILIES)[index % 2],
        prompt=f"Stream {index} says: " + "word " * (index % 7),
        max_tokens=NUM_TOKENS,
        temperature=1.0,
        top_p=0.95,
        seed=1000 + index,
        frequency_penalty=0.4,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"min_tokens": NUM_TOKENS // 2},
    )
    text, reason, usage = "", None, None
    async for chunk in stream:
        seen[index] += 1
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.text
            reason = choice.finish_reason or reason
    assert usage is not None
    return text, reason, usage.prompt_tokens, usage.completion_tokens


async def _streams(url: str, meddle: Callable[[], None] | None = None) -> list[tuple[Any, ...]]:
    """What all streams yield. meddle: called once in their middle."""
    seen = [0] * NUM_STREAMS
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        running = asyncio.gather(*(_stream(client, i, seen) for i in range(NUM_STREAMS)))
        while meddle is not None and min(seen) < 5:
            assert not running.done()
            await asyncio.sleep(0.005)
        if meddle is not None:
            meddle()
        return await running


def _processes(name: str) -> list[int]:
    """Process ids of that name below this process."""
    found = []
    for pid in _descendants(os.getpid()):
        try:
            comm = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            continue
        if comm == name:
            found.append(pid)
    return sorted(found)


@pytest.fixture(scope="module")
def undisturbed(url: str) -> list[tuple[Any, ...]]:
    results = asyncio.run(_streams(url))
    assert {reason for _, reason, *_ in results} <= {"length", "stop"}
    return results


def test_a_killed_worker_of_one_rank(url: str, undisturbed: list[tuple[Any, ...]]) -> None:
    """The decode worker of some rank: its group starts again, the ranks' owners stay."""
    owners = [_processes(f"mux-rank-{rank}") for rank in (0, 1)]
    before = _processes("mux-worker-1")
    assert len(before) == 2
    assert asyncio.run(_streams(url, lambda: os.kill(before[1], signal.SIGKILL))) == undisturbed
    assert not set(before) & set(_processes("mux-worker-1"))
    assert [_processes(f"mux-rank-{rank}") for rank in (0, 1)] == owners


def test_a_killed_rank(url: str, undisturbed: list[tuple[Any, ...]]) -> None:
    """All ranks load again, and the streams go on."""
    (owner,) = _processes("mux-rank-1")
    assert asyncio.run(_streams(url, lambda: os.kill(owner, signal.SIGKILL))) == undisturbed
    assert _processes("mux-rank-1") != [owner]
