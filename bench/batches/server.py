"""The server of `bench/batch.py`: jobs and interactive streams through HTTP, on Ray."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

_POLL_S = 0.1
_START_S = 300.0
_CONTEXT = ("max_tokens", "model", "prompt", "temperature")


@dataclass(frozen=True, slots=True)
class Served:
    """A job from its upload to its last result."""

    seconds: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    custom_ids: list[str]  # of all lines of both result files

    @property
    def tokens_per_s(self) -> float:
        """Prompt and output tokens."""
        return (self.prompt_tokens + self.output_tokens) / self.seconds


class Server:
    """A running server, asked as any client would."""

    def __init__(self, client: AsyncOpenAI) -> None:
        self._client = client

    async def run(self, job: Path) -> Served:
        """Upload the job, wait for its end and read its results.

        Raises RuntimeError where a line failed.
        """
        start_s = time.monotonic()
        file = await self._client.files.create(file=job, purpose="batch")
        batch = await self._client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/completions",
            completion_window="24h",
        )
        while batch.status in ("validating", "in_progress", "finalizing"):
            await asyncio.sleep(_POLL_S)
            batch = await self._client.batches.retrieve(batch.id)
        seconds = time.monotonic() - start_s
        counts, use = batch.request_counts, batch.usage
        if batch.status != "completed" or counts is None or counts.failed or use is None:
            raise RuntimeError(f"the batch did not complete: {batch}")
        found = []
        for file_id in (batch.output_file_id, batch.error_file_id):
            if file_id is not None:
                text = (await self._client.files.content(file_id)).text
                found += [json.loads(line)["custom_id"] for line in text.splitlines()]
        cached = use.input_tokens_details.cached_tokens
        return Served(seconds, use.input_tokens, cached, use.output_tokens, found)

    async def generate(self, fields: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        """Stream a completion; yields a chunk of its answer at a time."""
        known = {name: fields[name] for name in _CONTEXT}
        more = {name: value for name, value in fields.items() if name not in known}
        stream = await self._client.completions.create(**known, stream=True, extra_body=more)
        async with aclosing(stream.response.aiter_lines()) as lines:
            async for line in lines:
                if line.startswith("data: {"):
                    yield line


@asynccontextmanager
async def served(config: str, port: int) -> AsyncGenerator[Server, None]:
    """Run `muxcluster serve` with the configuration during the block.

    Raises RuntimeError where it does not start.
    """
    code = "from muxcluster.cli.main import main; main()"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, "serve", config, "--port", str(port)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    reading = asyncio.create_task(_ready(process))
    try:
        await asyncio.wait_for(reading, _START_S)
        silence = asyncio.create_task(_read_on(process))
        url = f"http://127.0.0.1:{port}/v1"
        async with AsyncOpenAI(base_url=url, api_key="bench", timeout=600.0) as client:
            yield Server(client)
        silence.cancel()
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _ready(process: asyncio.subprocess.Process) -> None:
    """Return once the server says that it is ready."""
    assert process.stdout is not None
    said = []
    while line := await process.stdout.readline():
        said.append(line.decode(errors="replace"))
        if "ready after" in said[-1]:
            return
    raise RuntimeError("the server did not start:\n" + "".join(said))


async def _read_on(process: asyncio.subprocess.Process) -> None:
    """Empty the pipe, or the server would wait for it."""
    assert process.stdout is not None
    while await process.stdout.readline():
        pass
