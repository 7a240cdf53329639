"""A model that is not on the attention interface, over HTTP beside two that are."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn

from muxcluster.config.load import load_config
from muxcluster.config.planning import plan_for
from muxcluster.config.units import served_models, unit_specs
from muxcluster.core.events import TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.unit.local import LocalUnitClient
from muxcluster.http.app import create_app
from muxcluster.http.settings import ApiSettings
from muxcluster.router.backend import RoutedBackend
from tests.engine.conftest import ModelBuilder
from tests.engine.dense.units import VOCAB, generated
from tests.engine.units import check_nothing_leaks, prompts

FAMILIES = ("bloom", "llama", "qwen2")
NUM_TOKENS = 16
MANY_TOKENS = 400
"""More than are read before a stream is left."""


class Recording(LocalUnitClient):
    """Remembers the tokens of each request that ran to its end, by its prompt and their number.

    They are what the library's are compared with: bytes that make no whole character look alike.
    """

    def __init__(self, spec: UnitSpec) -> None:
        super().__init__(spec)
        self.tokens: dict[tuple[int, ...], list[int]] = {}

    async def generate(self, request: Request) -> AsyncGenerator[TokenDelta, None]:
        tokens: list[int] = []
        async with aclosing(super().generate(request)) as deltas:
            async for delta in deltas:
                tokens += delta.tokens
                if delta.finished is not None and len(tokens) == NUM_TOKENS:
                    self.tokens[tuple(request.prompt_tokens.tolist())] = tokens
                yield delta


@asynccontextmanager
async def serving(file: Path) -> AsyncIterator[tuple[Recording, httpx.AsyncClient]]:
    """The unit of a configuration, and an HTTP client of a server on a real socket before it."""
    config = load_config(file)
    (spec,) = unit_specs(config, plan_for(config))
    unit = Recording(spec)
    await unit.start()
    backend = RoutedBackend(served_models(config), dict.fromkeys(_names(spec), unit))
    app = create_app(backend, ApiSettings())
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    task = asyncio.create_task(server.serve())
    try:
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=600) as http:
            yield unit, http
    finally:
        server.should_exit = True
        await task
        await unit.close()


def _names(spec: UnitSpec) -> list[str]:
    return [model.name for model in spec.models]


def body_of(model: str, prompt: list[int], num_tokens: int) -> dict[str, object]:
    options = {"temperature": 0, "ignore_eos": True, "stream": True}
    return {"model": model, "prompt": prompt, "max_tokens": num_tokens, **options}


async def streamed(http: httpx.AsyncClient, body: dict[str, object], most: int = 10**6) -> str:
    """The text of a stream, or of its first `most` events."""
    text, num_events = "", 0
    async with http.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
            num_events += 1
            if num_events == most:
                break
    return text


@pytest.mark.parametrize("partition", ["none", pytest.param("threads", marks=pytest.mark.slow)])
def test_streams_finish_as_the_library_says_and_cancelled_ones_leave_nothing(
    tiny: ModelBuilder, tmp_path: Path, partition: str
) -> None:
    models = [f"  - {{name: {name}, path: {tiny(name)}, max_model_len: 512}}" for name in FAMILIES]
    policy = f"policy: {{kv_gb: 0.05, num_threads: 2, partition: {partition}}}"
    file = tmp_path / "muxcluster.yaml"
    file.write_text("\n".join(["models:", *models, policy]), "utf-8")
    asked = {name: prompts(name, 3, VOCAB, shared=24, longest=60) for name in FAMILIES}
    flat = [(name, prompt) for name in FAMILIES for prompt in asked[name].values()]

    async def run() -> Recording:
        async with serving(file) as (unit, http):
            left = [
                streamed(http, body_of(name, prompt, MANY_TOKENS), most=3) for name, prompt in flat
            ]
            whole = [streamed(http, body_of(name, prompt, NUM_TOKENS)) for name, prompt in flat]
            assert all(await asyncio.gather(*whole, *left)), "a stream says nothing"
            while unit.unit.num_open:
                await asyncio.sleep(0.02)
            found = {model.name: model.backend for model in unit.unit.stats().models}
            assert found == {"bloom": "dense", "llama": "paged", "qwen2": "paged"}
            num_output = sum(model.output_tokens for model in unit.unit.stats().models)
            assert num_output < len(flat) * (NUM_TOKENS + MANY_TOKENS), "nobody was cancelled"
            check_nothing_leaks(unit.unit)
            return unit

    unit = asyncio.run(run())
    assert len(unit.tokens) == len(flat)
    for name, prompt in flat:
        assert unit.tokens[tuple(prompt)] == generated(tiny(name), prompt, NUM_TOKENS), name
