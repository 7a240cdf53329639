"""Asks every model at once and shows that their answers stream at the same time."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from openai import AsyncOpenAI


@dataclass(frozen=True, slots=True)
class Streamed:
    """One answer: when its first and its last chunk came (seconds on one clock), and its text."""

    model: str
    first_s: float
    last_s: float
    text: str


async def stream_together(
    client: AsyncOpenAI, models: Sequence[str], num_tokens: int
) -> list[Streamed]:
    """One stream of `num_tokens` from each model, all sent at once. Raises OpenAIError."""
    return await asyncio.gather(*(_stream(client, model, num_tokens) for model in models))


async def _stream(client: AsyncOpenAI, model: str, num_tokens: int) -> Streamed:
    stream: Any = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "What does a lock protect?"}],
        max_tokens=num_tokens,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    times, text = [], ""
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            times.append(time.monotonic())
            text += chunk.choices[0].delta.content
    now = time.monotonic()
    return Streamed(model, times[0] if times else now, times[-1] if times else now, text)


def overlap_s(streams: Sequence[Streamed]) -> float:
    """Seconds in which all streams were under way; negative where some ran one after another."""
    return min(stream.last_s for stream in streams) - max(stream.first_s for stream in streams)
