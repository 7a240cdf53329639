"""Sends a burst to a running server with the `openai` client and takes the times."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from openai import AsyncOpenAI, OpenAIError

from muxcluster.demo.workload import Planned


@dataclass(frozen=True, slots=True)
class Sample:
    """One answered request; seconds on one clock. error: None, or why there is no answer.

    ttft_s: to the first streamed piece of text. end_s: when the stream ended.
    """

    model: str
    start_s: float
    ttft_s: float
    end_s: float
    prompt_tokens: int
    output_tokens: int
    error: str | None = None

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first; None for a single token."""
        if self.output_tokens < 2:
            return None
        return (self.end_s - self.start_s - self.ttft_s) / (self.output_tokens - 1)


def prompt_of(words: Sequence[str], position: int, num_tokens: int) -> str:
    """About `num_tokens` tokens of text: the demo's tokenizers need 1 to 2 tokens a word."""
    count = max(1, num_tokens * 2 // 3)
    return " ".join(words[(position * 37 + i) % len(words)] for i in range(count))


async def replay(
    client: AsyncOpenAI, requests: Sequence[Planned], words: Sequence[str]
) -> list[Sample]:
    """Send each request at its time, whatever became of the others; samples in their order."""
    start_s = time.monotonic()

    async def send(index: int, planned: Planned) -> Sample:
        await asyncio.sleep(start_s + planned.at_s - time.monotonic())
        return await ask(client, planned, prompt_of(words, index, planned.prompt_tokens))

    return await asyncio.gather(*(send(i, planned) for i, planned in enumerate(requests)))


async def ask(client: AsyncOpenAI, planned: Planned, prompt: str) -> Sample:
    """Stream one chat completion to its end."""
    start_s = time.monotonic()
    try:
        return await _stream(client, planned, prompt, start_s)
    except OpenAIError as error:
        return Sample(planned.model, start_s, 0.0, time.monotonic(), 0, 0, str(error))


async def _stream(client: AsyncOpenAI, planned: Planned, prompt: str, start_s: float) -> Sample:
    stream: Any = await client.chat.completions.create(
        model=planned.model,
        messages=[{"role": "user", "content": prompt}],
        max_tokens=planned.output_tokens,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    first_s, usage = None, None
    async for chunk in stream:
        if first_s is None and chunk.choices and chunk.choices[0].delta.content:
            first_s = time.monotonic()
        usage = chunk.usage or usage
    end_s = time.monotonic()
    return Sample(
        planned.model,
        start_s,
        (first_s or end_s) - start_s,
        end_s,
        usage.prompt_tokens if usage else 0,
        usage.completion_tokens if usage else 0,
    )
