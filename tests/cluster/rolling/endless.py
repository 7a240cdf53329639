"""Streams that begin again as soon as they have ended, whatever happens to the server meanwhile."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from openai import AsyncOpenAI

TIMEOUT_S = 600.0
START_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Stream:
    """What a greedy stream said, how many tokens it counted, and why it ended."""

    text: str
    num_tokens: int
    reason: str | None


@dataclass(slots=True)
class Seen:
    """All streams of one prompt, and what was raised."""

    streams: list[Stream] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    num_events: int = 0  # of the stream that runs


class EndlessStreams:
    """`number` streams at a time over the models, on a thread of their own, as a `with` block.

    url: of the API, "http://host:port/v1". No request is sent again after an error: it is kept.
    """

    def __init__(self, url: str, models: Sequence[str], number: int, num_tokens: int) -> None:
        self._url = url
        self._models = models
        self._num_tokens = num_tokens
        self.seen = [Seen() for _ in range(number)]
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def errors(self) -> list[str]:
        return [error for seen in self.seen for error in seen.errors]

    def wait_until_under_way(self) -> None:
        """Wait until every stream has some events. Raises AssertionError if they do not come."""
        waiting = threading.Event()
        for _ in range(int(START_TIMEOUT_S / 0.1)):
            assert not self.errors, self.errors
            if all(seen.num_events > 2 or seen.streams for seen in self.seen):
                return
            waiting.wait(0.1)
        raise AssertionError([seen.num_events for seen in self.seen])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Let the streams that run end, and wait for them."""
        self._is_over.set()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        asyncio.run(self._all())

    async def _all(self) -> None:
        client = AsyncOpenAI(base_url=self._url, api_key="unused", max_retries=0, timeout=TIMEOUT_S)
        async with client:
            await asyncio.gather(*(self._again(client, index) for index in range(len(self.seen))))

    async def _again(self, client: AsyncOpenAI, index: int) -> None:
        seen = self.seen[index]
        while not seen.errors:
            try:
                seen.streams.append(await self._one(client, index))
            except Exception as error:  # noqa: BLE001 - whatever the client raises is kept
                cause = "" if error.__cause__ is None else f" from {error.__cause__!r}"
                came = f"after {seen.num_events} events of stream {len(seen.streams)}"
                seen.errors.append(f"{index}: {error!r}{cause}, {came}")
            if self._is_over.is_set():
                return

    async def _one(self, client: AsyncOpenAI, index: int) -> Stream:
        self.seen[index].num_events = 0
        stream: Any = await client.completions.create(
            model=self._models[index % len(self._models)],
            prompt=f"Stream {index} says: " + "word " * (index % 7),
            max_tokens=self._num_tokens,
            temperature=0.0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        text, num_tokens, reason = "", 0, None
        async for chunk in stream:
            self.seen[index].num_events += 1
            num_tokens = num_tokens if chunk.usage is None else chunk.usage.completion_tokens
            for choice in chunk.choices:
                text += choice.text
                reason = choice.finish_reason or reason
        return Stream(text, num_tokens, reason)
