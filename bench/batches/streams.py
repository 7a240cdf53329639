"""Interactive streams of `bench/batch.py`: each asks, reads its answer, pauses and asks again."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Protocol

import numpy as np

from bench.harness import percentiles

NUM_STREAMS = 64
# Targets over the p99 of the same streams alone: what batch work may cost them.
FACTOR = 1.25
PROMPT, OUTPUT, PAUSE_S = (16, 32), 16, 8.0


class Answering(Protocol):
    """Answers interactive requests: the service in this process, or a server."""

    def generate(self, fields: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        """Yield parts of the answer as they come."""
        ...


class Streams:
    """Measures `NUM_STREAMS` streams. ttft_s, tpot_s: of each answer so far; tpot: mean seconds of
    the tokens after the first."""

    def __init__(
        self, service: Answering, models: Sequence[str], vocabulary: int, seed: int
    ) -> None:
        """Without targets, until `slo` is set: seconds, of every request."""
        self.slo: dict[str, float] | None = None
        self._service = service
        self._models = models
        self._vocabulary = vocabulary
        self._seed = seed
        self.ttft_s: list[float] = []
        self.tpot_s: list[float] = []

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None, None]:
        """They run during the block. Raises what a request ends with."""
        tasks = [asyncio.create_task(self._run(number)) for number in range(NUM_STREAMS)]
        try:
            yield
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, number: int) -> None:
        rng = np.random.default_rng((self._seed, number))
        await asyncio.sleep(rng.uniform(0, PAUSE_S))
        while True:
            await self._ask(rng, self._models[number % len(self._models)])
            await asyncio.sleep(rng.exponential(PAUSE_S))

    async def _ask(self, rng: np.random.Generator, model: str) -> None:
        count = int(rng.integers(*PROMPT, endpoint=True))
        prompt = (rng.integers(self._vocabulary, size=count) + 3).tolist()
        fixed = {"max_tokens": OUTPUT, "temperature": 0, "ignore_eos": True}
        fields = {"model": model, "prompt": prompt, **fixed}
        if self.slo is not None:
            fields["slo"] = self.slo
        start_s, first_s = time.monotonic(), None
        async with aclosing(self._service.generate(fields)) as deltas:
            async for _ in deltas:
                first_s = first_s or time.monotonic()
        assert first_s is not None
        self.ttft_s.append(first_s - start_s)
        self.tpot_s.append((time.monotonic() - first_s) / (OUTPUT - 1))

    def targets(self) -> dict[str, float]:
        """1.25 times the p99 of these streams, which ran alone."""
        found = {"ttft": self.ttft_s, "tpot": self.tpot_s}
        return {name: FACTOR * float(np.percentile(each, 99)) for name, each in found.items()}

    def figures(self) -> dict[str, dict[str, float]]:
        """Percentiles, and the share of requests that met a target they had."""
        found = {
            "ttft_s": percentiles(self.ttft_s, 4),
            "tpot_s": percentiles(self.tpot_s, 4),
        }
        if self.slo is not None:
            found["met"] = {
                "ttft": float(np.mean(np.array(self.ttft_s) <= self.slo["ttft"])),
                "tpot": float(np.mean(np.array(self.tpot_s) <= self.slo["tpot"])),
            }
        return found
