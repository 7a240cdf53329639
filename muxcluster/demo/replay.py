"""Replay of a burst against a running server, with times."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muxcluster.demo.workload import Planned
from muxcluster.loadgen.answer import Answer, answer_of
from muxcluster.loadgen.exchange import Target, exchange, request_bytes

TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One answered request; seconds on one clock."""

    model: str
    start_s: float
    ttft_s: float  # to the first streamed piece of text
    end_s: float  # when the last piece came
    prompt_tokens: int
    output_tokens: int
    error: str | None = None  # None, or why there is no answer

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first; None for a single token."""
        if self.output_tokens < 2:
            return None
        return (self.end_s - self.start_s - self.ttft_s) / (self.output_tokens - 1)


def prompt_of(words: Sequence[str], position: int, num_tokens: int) -> str:
    """Return text of about `num_tokens` tokens: the demo's tokenizers need 1 to 2 tokens a word."""
    count = max(1, num_tokens * 2 // 3)
    return " ".join(words[(position * 37 + i) % len(words)] for i in range(count))


async def replay(target: Target, requests: Sequence[Planned], words: Sequence[str]) -> list[Sample]:
    """Send each request at its time, regardless of the others; return samples in order."""
    start_s = time.perf_counter()

    async def send(index: int, planned: Planned) -> Sample:
        await asyncio.sleep(start_s + planned.at_s - time.perf_counter())
        return await ask(target, planned, prompt_of(words, index, planned.prompt_tokens))

    return await asyncio.gather(*(send(i, planned) for i, planned in enumerate(requests)))


async def ask(target: Target, planned: Planned, prompt: str) -> Sample:
    """Stream one chat completion to its end."""
    answer = await stream_chat(target, planned.model, prompt, planned.output_tokens)
    if not answer.is_complete:
        now_s = time.perf_counter()
        return Sample(planned.model, answer.start_s, 0.0, now_s, 0, 0, answer.error)
    return Sample(
        planned.model,
        answer.start_s,
        answer.ttft_s,
        answer.start_s + answer.latency_s,
        answer.num_prompt_tokens,
        answer.num_output_tokens,
    )


async def stream_chat(target: Target, model: str, prompt: str, num_tokens: int) -> Answer:
    """Return the streamed answer of exactly `num_tokens` tokens; errors are in its `error`."""
    fields: Mapping[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": num_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    body = json.dumps(fields).encode()
    return answer_of(
        await exchange(target, request_bytes(target, "/v1/chat/completions", body), TIMEOUT_S)
    )
