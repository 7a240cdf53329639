"""Mooncake's traces (FAST'25): long prompts with block ids, so with real prefix sharing."""

import math
from collections.abc import Iterator
from itertools import groupby, islice
from pathlib import Path

from muxcluster.core.request import ServiceClass
from muxcluster.workload.arrival import Arrival, Prefix
from muxcluster.workload.files.rows import Row, json_rows
from muxcluster.workload.seeds import rng_for

BLOCK_TOKENS = 512
CONVERSATION_SPREAD_S = 3.0  # the conversation trace's clock ticks about every 3 s


def read_mooncake(
    path: Path, model: str, spread_s: float = 0.0, seed: int = 0
) -> Iterator[Arrival]:
    """Yield the requests, all interactive, at the file's times (seconds from its start).

    spread_s: requests of one timestamp come at random moments within so many seconds after it, at
    most until the next timestamp, in the file's order. Raises ConfigError for rows that are
    malformed or out of order, ValueError for a spread below 0.
    """
    if not spread_s >= 0:
        raise ValueError(f"expected a spread of 0 s or more, found {spread_s}")
    return _spread(path, model, spread_s, seed)


def _spread(path: Path, model: str, spread_s: float, seed: int) -> Iterator[Arrival]:
    rng = rng_for(seed, "mooncake", model)
    index = 0
    for time_s, rows, next_s in _ticks(path):
        offsets = min(spread_s, next_s - time_s) * rng.random(len(rows))
        offsets.sort()
        for row, offset in zip(rows, offsets.tolist(), strict=True):
            yield _arrival(row, time_s + offset, f"{model}/{index}", model)
            index += 1


def _ticks(path: Path) -> Iterator[tuple[float, list[Row], float]]:
    """Yield each timestamp, its rows, and the next timestamp (infinite at the end), in seconds."""
    groups = groupby(json_rows(path), key=lambda row: row.whole("timestamp", 0))
    held = [(time_ms, list(rows)) for time_ms, rows in islice(groups, 1)]
    for time_ms, group in groups:
        rows, (before_ms, before) = list(group), held.pop()
        if time_ms < before_ms:
            rows[0].fail("timestamp", f"expected {before_ms} ms or later, found {time_ms}")
        yield before_ms / 1000.0, before, time_ms / 1000.0
        held = [(time_ms, rows)]
    yield from ((time_ms / 1000.0, rows, math.inf) for time_ms, rows in held)


def _arrival(row: Row, time_s: float, request_id: str, model: str) -> Arrival:
    prompt = row.whole("input_length", 1)
    return Arrival(
        time_s,
        request_id,
        model,
        prompt,
        row.whole("output_length", 1),
        ServiceClass.INTERACTIVE,
        Prefix(row.blocks("hash_ids", prompt, BLOCK_TOKENS), BLOCK_TOKENS),
    )
