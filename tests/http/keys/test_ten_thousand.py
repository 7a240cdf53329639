"""10,000 requests by five keys to a real unit: counts, equal shares, keys changed meanwhile."""

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from muxcluster.http.settings import ApiSettings
from muxcluster.tenants.keys import KeySettings
from tests.http.fakes import wait_until
from tests.http.keys.conftest import Clock, entry, write
from tests.http.live_server import NAME, configured, live_server

NUM_REQUESTS = 2_000  # of each key
NUM_TOKENS = 4
# A minute's requests; the clock of the counter stands still. Two keys have none to spare.
LIMITS = {"greedy": 1_900, "a": 1_500, "b": None, "c": 2_000, "d": 1_200}
AT_ONCE = {"greedy": 280, "a": 40, "b": 40, "c": 40, "d": 40}  # more than a fifth of all rows
RELOAD_PERIOD_S = 0.5


@dataclass
class Told:
    """What one key was answered."""

    ended_s: list[float] = field(default_factory=list)  # of each admitted request
    left: list[int] = field(default_factory=list)  # as the header says it
    tokens: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)


def entries(**more: Any) -> list[dict[str, Any]]:
    limited = {
        name: {} if limit is None else {"requests_per_minute": limit}
        for name, limit in LIMITS.items()
    }
    return [entry(name, **limited[name]) for name in LIMITS] + [entry("more", **more)]


async def send(url: str, key: str) -> Told:
    """All requests of a key, so many at a time."""
    told = Told()
    numbers = iter(range(NUM_REQUESTS))
    headers = {"Authorization": f"Bearer {key}-secret"}
    # the server closes connections that are idle for five seconds
    limits = httpx.Limits(max_connections=AT_ONCE[key], keepalive_expiry=1.0)
    async with httpx.AsyncClient(
        base_url=url, headers=headers, limits=limits, timeout=600
    ) as client:

        async def one_after_another() -> None:
            for number in numbers:
                # as long for each key: tokens are shared out, not requests
                prompt = [10 + list(LIMITS).index(key), 20 + number // 100, 20 + number % 100] * 3
                fields = {"prompt": prompt, "max_tokens": NUM_TOKENS}
                body = {"model": NAME, "ignore_eos": True, **fields}
                answer = await client.post("/v1/completions", json=body)
                told.statuses[answer.status_code] += 1
                if answer.status_code == 200:
                    told.ended_s.append(time.monotonic())
                    told.tokens.update(
                        {k: v for k, v in answer.json()["usage"].items() if isinstance(v, int)}
                    )
                    if LIMITS[key] is not None:
                        told.left.append(int(answer.headers["x-ratelimit-remaining-requests"]))

        await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE[key])))
    return told


async def reload(file: Path, is_over: asyncio.Event) -> int:
    """Write the keys again and again, each time with another limit for a key that rests."""
    number = 0
    while not is_over.is_set():
        number += 1
        write(file, *entries(requests_per_minute=number, enabled=number % 2 == 0))
        await asyncio.sleep(RELOAD_PERIOD_S)
    return number


async def everything(url: str, file: Path) -> tuple[dict[str, Told], int]:
    is_over = asyncio.Event()
    reloading = asyncio.create_task(reload(file, is_over))
    found = await asyncio.gather(*(send(url, key) for key in LIMITS))
    is_over.set()
    return dict(zip(LIMITS, found, strict=True)), await reloading


@pytest.mark.slow
def test_five_keys_are_counted_exactly_and_none_starves(tmp_path: Path, clock: Clock) -> None:
    keys_file = tmp_path / "keys.yaml"
    write(keys_file, *entries())
    settings = ApiSettings(keys=KeySettings(str(tmp_path / "usage"), file=str(keys_file)))
    admin = {"Authorization": "Bearer admin-secret"}
    with live_server(configured(tmp_path), settings) as url:
        http = httpx.Client(base_url=url, headers=admin, timeout=300)
        assert wait_until(lambda: http.get("/ready").status_code == 200)
        told, num_reloads = asyncio.run(everything(url, keys_file))
        rows: list[dict[str, Any]] = []

        def are_settled() -> bool:
            rows[:] = http.get("/usage").json()["data"]
            return sum(row["requests"] + row["refused"] for row in rows) >= 5 * NUM_REQUESTS

        assert wait_until(are_settled), rows
        http.close()
    assert num_reloads > 5
    for key, limit in LIMITS.items():
        mine, admitted = told[key], min(limit or NUM_REQUESTS, NUM_REQUESTS)
        refused = NUM_REQUESTS - admitted
        assert mine.statuses == +Counter({200: admitted, 429: refused})
        assert sorted(mine.left) == ([] if limit is None else list(range(limit - admitted, limit)))
        used = Counter(
            {
                name: sum(row[name] for row in rows if row["key"] == key)
                for name in ("requests", "refused", "prompt_tokens", "completion_tokens")
            }
        )
        expected = {"requests": admitted, "refused": refused, **mine.tokens}
        assert used == {name: expected[name] for name in used}, json.dumps(rows)
    # Of what ended while all five had requests waiting, each has about a fifth.
    until_s = min(mine.ended_s[-1] for mine in told.values())
    shares = {key: sum(ended < until_s for ended in mine.ended_s) for key, mine in told.items()}
    assert min(shares.values()) >= 0.9 * sum(shares.values()) / len(shares), shares
