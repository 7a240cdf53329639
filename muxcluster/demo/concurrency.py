"""Concurrency check: ask every model at once and show that their answers stream simultaneously."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from muxcluster.core.errors import EngineFailure
from muxcluster.demo.replay import stream_chat
from muxcluster.loadgen.exchange import Target

QUESTION = "What does a lock protect?"


@dataclass(frozen=True, slots=True)
class Streamed:
    """One answer: when its first and its last chunk came (seconds on one clock), and its text."""

    model: str
    first_s: float
    last_s: float
    text: str


async def stream_together(target: Target, models: Sequence[str], num_tokens: int) -> list[Streamed]:
    """Request one stream of `num_tokens` from each model, all at once.

    Raises EngineFailure if one of them is not answered.
    """
    return await asyncio.gather(*(_stream(target, model, num_tokens) for model in models))


async def _stream(target: Target, model: str, num_tokens: int) -> Streamed:
    answer = await stream_chat(target, model, QUESTION, num_tokens)
    if not answer.is_complete:
        raise EngineFailure(f"{model} did not answer: {answer.error}")
    return Streamed(model, answer.event_times_s[0], answer.event_times_s[-1], answer.text)


def overlap_s(streams: Sequence[Streamed]) -> float:
    """Seconds in which all streams were running; negative if some ran one after another."""
    return min(stream.last_s for stream in streams) - max(stream.first_s for stream in streams)
