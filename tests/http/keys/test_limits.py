"""Limits of keys over two ingresses: headers, refusals and the ledger, counted exactly."""

import asyncio
import random
from collections import Counter
from contextlib import ExitStack
from itertools import count, islice

import httpx
import pytest

from muxcluster.core.errors import EngineFailure, NotReady
from muxcluster.http.keys.headers import duration
from tests.http.fakes import FakeBackend, wait_until
from tests.http.keys.conftest import Clock, Ingresses, Start, Unreachable, entry

NUM_REQUESTS = 200
LIMITS = {"k0": 10, "k1": 25, "k2": 39, "k3": None, "k4": 200}


async def _send(ingresses: Ingresses, rng: random.Random) -> list[tuple[str, httpx.Response]]:
    """Requests of five keys to both ingresses at once, whole and streamed, with one or two
    choices."""
    limits = httpx.Limits(max_connections=40)
    async with httpx.AsyncClient(limits=limits, timeout=300) as client:

        async def one(number: int) -> tuple[str, httpx.Response]:
            key = f"k{number % 5}"
            body = {
                "model": rng.choice(["tiny", "other"]),
                "prompt": "hello " * rng.randint(1, 9),
                "max_tokens": rng.randint(1, 9),
                "n": rng.randint(1, 2),
            }
            if rng.random() < 0.5:
                body |= {"stream": True, "stream_options": {"include_usage": True}}
            url = f"{rng.choice(ingresses.urls)}/v1/completions"
            headers = {"Authorization": f"Bearer {key}-secret"}
            return key, await client.post(url, json=body, headers=headers)

        return await asyncio.gather(*(one(number) for number in range(NUM_REQUESTS)))


def _usage_of(answer: httpx.Response) -> dict[str, int]:
    """The usage in an answer, whole or streamed."""
    if answer.headers["content-type"].startswith("application/json"):
        return answer.json()["usage"]
    events = answer.text.strip().split("\n\n")
    assert events[-1] == "data: [DONE]"
    return httpx.Response(200, content=events[-2].removeprefix("data: ")).json()["usage"]


def test_five_keys_over_two_ingresses_are_counted_exactly(start: Start, clock: Clock) -> None:
    entries = [
        entry(name) if limit is None else entry(name, requests_per_minute=limit)
        for name, limit in LIMITS.items()
    ]
    ingresses = start(*entries)
    answers = asyncio.run(_send(ingresses, random.Random(1)))
    rows = ingresses.settled(NUM_REQUESTS)
    sent = Counter(key for key, _ in answers)
    for key, limit in LIMITS.items():
        mine = [answer for name, answer in answers if name == key]
        good = [answer for answer in mine if answer.status_code == 200]
        refused = [answer for answer in mine if answer.status_code != 200]
        admitted = sent[key] if limit is None else min(limit, sent[key])
        assert len(good) == admitted
        name = "x-ratelimit-remaining-requests"
        if limit is None:
            assert all(name not in answer.headers for answer in good)
        else:
            left = sorted(int(answer.headers[name]) for answer in good)
            assert left == list(range(limit - admitted, limit))
            assert {answer.headers["x-ratelimit-limit-requests"] for answer in mine} == {str(limit)}
        for answer in refused:
            assert answer.status_code == 429
            assert answer.json()["error"]["code"] == "rate_limit_exceeded"
            assert answer.headers["retry-after"] == "60"  # the clock stands still
            assert (answer.headers[name], answer.headers["x-ratelimit-reset-requests"]) == (
                "0",
                "1m0s",
            )
        told = [_usage_of(answer) for answer in good]
        found = [row for row in rows if row["key"] == key]
        for count_name in ("prompt_tokens", "completion_tokens"):
            assert sum(row[count_name] for row in found) == sum(each[count_name] for each in told)
        cached = sum(each["prompt_tokens_details"]["cached_tokens"] for each in told)
        assert sum(row["cached_tokens"] for row in found) == cached
        assert sum(row["requests"] for row in found) == len(good)
        assert sum(row["refused"] for row in found) == len(refused)
        assert ingresses.num_open(key) == 0
    clock.now_s += 60.0
    assert ingresses.complete("k0").status_code == 200


def test_tokens_are_reserved_whole_and_settled_with_what_was_used(
    start: Start, clock: Clock, backend: FakeBackend
) -> None:
    ingresses = start(entry("a", tokens_per_minute=200))
    end = backend.served[0].eos_token_ids[0]
    backend.script = lambda request: [70, 70, end]
    first = ingresses.complete("a", 0, max_tokens=100)
    usage = first.json()["usage"]
    prompt, used = usage["prompt_tokens"], usage["total_tokens"]
    left = "x-ratelimit-remaining-tokens"
    assert int(first.headers[left]) == 200 - prompt - 100
    ingresses.settled(1)
    second = ingresses.complete("a", 1, max_tokens=100)
    assert int(second.headers[left]) == 200 - used - prompt - 100
    ingresses.settled(2)
    assert {request.tenant for request in backend.requests} == {"a"}
    refused = ingresses.complete("a", 1, max_tokens=200 - prompt - 2 * used + 1)
    assert refused.status_code == 429
    assert "200 tokens a minute" in refused.json()["error"]["message"]
    assert int(refused.headers[left]) == 200 - 2 * used
    assert refused.headers["x-ratelimit-limit-tokens"] == "200"
    assert "x-should-retry" not in refused.headers
    hopeless = ingresses.complete("a", 1, max_tokens=201)
    assert (hopeless.status_code, hopeless.headers["x-should-retry"]) == (429, "false")
    assert ingresses.complete("a", 1, max_tokens=200 - prompt - 2 * used).status_code == 200


def test_a_day_ends_at_midnight(start: Start, clock: Clock) -> None:
    ingresses = start(entry("a", tokens_per_day=20))
    assert ingresses.complete("a", max_tokens=10).status_code == 200
    used = ingresses.settled(1)[0]
    total = used["prompt_tokens"] + used["completion_tokens"]
    refused = ingresses.complete("a", 1, max_tokens=20)
    assert refused.status_code == 429 and refused.headers["retry-after"] == "60"
    assert refused.headers["x-ratelimit-remaining-tokens"] == str(20 - total)
    clock.now_s += 43_200.0
    assert ingresses.complete("a", 1, max_tokens=10).status_code == 200
    assert [row["day"] for row in ingresses.settled(3)] == ["2024-10-04", "2024-10-05"]


def test_streams_end_with_their_client_and_are_billed_for_what_came(
    start: Start, clock: Clock, backend: FakeBackend
) -> None:
    ingresses = start(entry("a", concurrent_requests=2, tokens_per_minute=1000))
    backend.most_deltas = 3
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 50, "stream": True}
    with ExitStack() as leaving:
        for which in range(2):
            client = leaving.enter_context(ingresses.client("a", which))
            answer = leaving.enter_context(client.stream("POST", "/v1/completions", json=body))
            assert answer.status_code == 200
            events = (line for line in answer.iter_lines() if line.startswith("data: "))
            assert len(list(islice(events, 3))) == 3
        assert ingresses.num_open("a") == 2
        third = ingresses.complete("a", 0)
        assert (third.status_code, third.headers["retry-after"]) == (429, "1")
        assert "2 requests open at once" in third.json()["error"]["message"]
    assert wait_until(lambda: ingresses.num_open("a") == 0)
    (row,) = ingresses.settled(3)
    assert (row["requests"], row["refused"]) == (2, 1)
    assert row["completion_tokens"] == 2 * 3
    backend.most_deltas = 10
    prompt = ingresses.complete("a").json()["usage"]["prompt_tokens"]
    assert row["prompt_tokens"] == 2 * prompt


def test_a_request_that_fails_before_its_first_token_costs_no_tokens(
    start: Start, clock: Clock, backend: FakeBackend
) -> None:
    ingresses = start(entry("a", tokens_per_minute=100, concurrent_requests=1))
    backend.error = EngineFailure("the unit is gone")
    assert ingresses.complete("a", max_tokens=50).status_code == 500
    (row,) = ingresses.settled(1)
    assert (row["requests"], row["prompt_tokens"], row["completion_tokens"]) == (1, 0, 0)
    backend.error = None
    good = ingresses.complete("a", 1, max_tokens=50)
    prompt = good.json()["usage"]["prompt_tokens"]
    assert good.headers["x-ratelimit-remaining-tokens"] == str(100 - 50 - prompt)


def test_what_is_refused_before_it_asks_is_not_counted(start: Start, clock: Clock) -> None:
    ingresses = start(entry("a", requests_per_minute=2))
    for _ in range(5):
        assert ingresses.complete("a", temperature=-1).status_code == 400
        assert ingresses.complete("a", model="nothing").status_code == 404
    for left in (1, 0):
        assert ingresses.complete("a").headers["x-ratelimit-remaining-requests"] == str(left)


def test_without_the_counter_requests_run_and_are_counted_later_once(
    start: Start, clock: Clock
) -> None:
    walls: list[Unreachable] = []

    def walled(host) -> Unreachable:
        walls.append(Unreachable(host))
        return walls[0]

    ingresses = start(entry("a", requests_per_minute=1), wrap=walled)
    (wall,) = walls
    wall.error = NotReady("gone")
    for which in (0, 1, 0, 1):
        answer = ingresses.complete("a", which)
        assert answer.status_code == 200
        assert "x-ratelimit-limit-requests" not in answer.headers
    # batches are written, their answers get lost, and they come again
    assert wait_until(lambda: max(Counter(wall.batches).values(), default=0) >= 2)
    failures = ingresses.get("/metrics", "admin").text
    name = "muxcluster:key_counter_failures_total"
    for reason in ("reserve", "settle"):
        lines = [x for x in failures.splitlines() if x.startswith(f'{name}{{reason="{reason}"')]
        assert len(lines) == 1 and float(lines[0].split()[-1]) >= 1
    wall.error = None
    (row,) = ingresses.settled(4)
    assert row["requests"] == 4
    tries = count()

    def is_back() -> bool:
        """The ingress asks again a second after the last failure."""
        answer = ingresses.complete("a")
        next(tries)
        return "x-ratelimit-limit-requests" in answer.headers

    assert wait_until(is_back)
    assert ingresses.complete("a", 1).status_code == 429
    (row,) = ingresses.settled(5 + next(tries))
    assert (row["requests"], row["refused"]) == (4 + next(tries) - 1, 1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.0171, "18ms"),
        (0.9999, "1s"),
        (1.0, "1s"),
        (59.2, "1m0s"),
        (360.0, "6m0s"),
        (3723.0, "1h2m3s"),
    ],
)
def test_durations_are_written_as_openai_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text
