"""More requests than there is room for: who is refused, who finishes, and that the sums agree."""

import asyncio
import json
import math
import resource
from collections import Counter
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from starlette.testclient import TestClient

from muxcluster.core.errors import InvalidValue, Overloaded
from muxcluster.core.request import ServiceClass
from muxcluster.http.app import create_app
from muxcluster.http.calls.admission import MAX_RETRY_S, UNKNOWN_RETRY_S, Gate
from muxcluster.http.settings import ApiSettings, QueueLimits
from tests.http.test_status_routes import samples

TEXT = {"model": "tiny", "prompt": "hi"}
T = TypeVar("T")
RT, BE = ServiceClass.INTERACTIVE, ServiceClass.BATCH


def test_each_model_and_class_has_a_queue_of_its_own() -> None:
    gate = Gate(QueueLimits(interactive=2, batch=3))
    first = gate.admit("a", RT, 2)
    for _ in range(2):
        with pytest.raises(Overloaded) as full:
            gate.admit("a", RT, 1)
    assert full.value.retry_after_s == UNKNOWN_RETRY_S
    gate.admit("a", BE, 3)
    gate.admit("b", RT, 1)
    first.start(1)
    first.start(1)
    assert gate.num_waiting("a", RT) == 1
    with first, gate.admit("a", RT, 1):
        assert gate.num_waiting("a", RT) == 2
    assert gate.num_waiting("a", RT) == 0


def test_a_call_that_never_fits_is_wrong_rather_than_early() -> None:
    with pytest.raises(InvalidValue, match="at most 2 choices"):
        Gate(QueueLimits(interactive=2)).admit("a", RT, 3)


def test_the_time_to_wait_follows_the_queues_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("muxcluster.http.calls.admission.time.monotonic", lambda: now)
    gate = Gate(QueueLimits(interactive=100))
    for _ in range(30):  # three a second
        now += 1 / 3
        with gate.admit("a", RT, 1):
            pass
    gate.admit("a", RT, 100)
    with pytest.raises(Overloaded) as full:
        gate.check("a", RT, 1)
    assert 33 <= full.value.retry_after_s <= MAX_RETRY_S
    now += 1000.0
    with pytest.raises(Overloaded) as full:
        gate.check("a", RT, 1)
    assert full.value.retry_after_s == UNKNOWN_RETRY_S


async def burst(app: Any, backend: Any, count: int, body: Any) -> list[httpx.Response]:
    """`count` requests at once, in process."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        calls = (client.post("/v1/completions", json=body(i), timeout=600) for i in range(count))
        return await at_once(backend, calls)


async def at_once(backend: Any, calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Answers of calls of which none gets a token before each is refused or accepted."""
    num_before, backend.most_deltas = len(backend.requests), 0
    tasks = [asyncio.create_task(each) for each in calls]
    while sum(task.done() for task in tasks) + len(backend.requests) - num_before < len(tasks):
        await asyncio.sleep(0.01)
    backend.most_deltas = math.inf
    return await asyncio.gather(*tasks)


@dataclass
class Answer:
    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""


async def call(app: Any, body: bytes) -> Answer:
    """One POST straight into the application; a client library costs ten times its work."""
    answer, unread = Answer(), [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return unread.pop() if unread else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answer.status, answer.headers = message["status"], dict(message["headers"])
        else:
            answer.body += message["body"]

    path = "/v1/completions"
    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    scope["query_string"] = b""
    await app(scope, receive, send)
    return answer


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def ends(values: dict[Any, float]) -> Counter[str]:
    """Requests by end, as the server counted them."""
    found: Counter[str] = Counter()
    for (name, *labels), value in values.items():
        if name == "vllm:request_success_total":
            found[labels[0]] += int(value)
        if name == "vllm:admission_rejections_total":
            found["rejected"] += int(value)
    return +found


@pytest.mark.slow
def test_ten_thousand_at_once(backend, says) -> None:
    """512 wait, the others get 429 with Retry-After, and all that was accepted finishes."""
    says("hello world", ends=False)
    app = create_app(backend, ApiSettings(queues=QueueLimits(open_calls=20_000)))
    body = json.dumps(TEXT | {"max_tokens": 2}).encode()

    before = resident_bytes()
    answers = asyncio.run(at_once(backend, (call(app, body) for _ in range(10_000))))
    assert resident_bytes() - before < 200 * 2**20
    by_status = Counter(answer.status for answer in answers)
    assert by_status == {200: 512, 429: 10_000 - 512}
    for answer in answers:
        if answer.status == 429:
            assert 1 <= int(answer.headers[b"retry-after"]) <= 60
            assert json.loads(answer.body)["error"]["code"] == "rate_limit_exceeded"
        else:
            assert json.loads(answer.body)["usage"]["completion_tokens"] == 2
    assert len(backend.requests) == len(backend.ended) == 512
    assert backend.aborted == []
    with TestClient(app) as http:
        counted = ends(samples(http))
        assert http.get("/load").json() == {"server_load": 0}
    assert counted["length"] == 512 and counted["rejected"] == 10_000 - 512
    assert sum(counted.values()) == 10_000


def test_batch_waits_in_a_longer_queue(backend, says) -> None:
    says("hello world", ends=False)
    app = create_app(backend, ApiSettings(queues=QueueLimits(interactive=3, batch=5)))
    tiers = ("default", "flex")
    answers = asyncio.run(burst(app, backend, 20, lambda i: TEXT | {"service_tier": tiers[i % 2]}))
    served = Counter(tiers[i % 2] for i in range(20) if answers[i].status_code == 200)
    assert served == {"default": 3, "flex": 5}


def test_the_queue_is_free_again_after_the_first_token(backend, says) -> None:
    """What runs does not count: a long answer leaves its place when it begins."""
    says("hello world again", ends=False)
    backend.most_deltas = 1
    service = create_app(backend, ApiSettings(queues=QueueLimits(interactive=1))).state.service

    async def run() -> int:
        streams = [service.generate(TEXT) for _ in range(5)]
        for stream in streams:
            await anext(stream)
        with pytest.raises(Overloaded):
            waiting = service.generate(TEXT)
            backend.most_deltas = 0
            pending = asyncio.ensure_future(anext(waiting))
            while service._gate.num_waiting("tiny", RT) == 0:
                await asyncio.sleep(0)
            try:
                await anext(service.generate(TEXT))
            finally:
                pending.cancel()
                await asyncio.gather(pending, return_exceptions=True)
        for stream in streams:
            await stream.aclose()
        backend.most_deltas = math.inf
        return len([delta async for delta in service.generate(TEXT)])

    assert asyncio.run(run()) > 0
    assert len(backend.aborted) == 6


def test_refused_before_it_is_tokenised(backend, says, monkeypatch) -> None:
    says("hi")
    app = create_app(backend, ApiSettings(queues=QueueLimits(interactive=0)))
    monkeypatch.setattr(app.state.service, "_prompts", None)
    with TestClient(app) as http:
        # nothing fits in an empty queue, so this is an error of the caller
        assert http.post("/v1/completions", json=TEXT).status_code == 400


def test_open_calls_are_bounded_before_their_bodies_are_read(backend, says) -> None:
    says("hello world")
    app = create_app(backend, ApiSettings(queues=QueueLimits(open_calls=4)))
    answers = asyncio.run(burst(app, backend, 10, lambda i: TEXT))
    assert Counter(a.status_code for a in answers) == {200: 4, 429: 6}
    with TestClient(app) as http:
        assert http.get("/health").status_code == 200
        assert http.post("/v1/completions", json=TEXT).status_code == 200
        assert sum(ends(samples(http)).values()) == 11


def test_bodies_are_bounded_together(backend, says) -> None:
    says("hello world")
    app = create_app(backend, ApiSettings(queues=QueueLimits(body_bytes=5000)))
    body = TEXT | {"user": "x" * 2000}
    answers = asyncio.run(burst(app, backend, 5, lambda i: body))
    assert Counter(a.status_code for a in answers) == {200: 2, 429: 3}
    again = asyncio.run(burst(app, backend, 2, lambda i: body))
    assert [a.status_code for a in again] == [200, 200]


def test_an_abort_storm_leaves_nothing(backend, says) -> None:
    says("hello world again", ends=False)
    backend.delay_s = 0.01
    app = create_app(backend, ApiSettings())
    service = app.state.service

    async def leave(i: int) -> None:
        stream = service.generate(TEXT | {"n": 1 + i % 3})
        if i % 2:
            await anext(stream)
            await stream.aclose()
            return
        reading = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.001 * (i % 7))
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await stream.aclose()

    async def storm() -> None:
        await asyncio.gather(*(leave(i) for i in range(200)))

    asyncio.run(storm())
    assert len(backend.aborted) == len(backend.requests) > 200
    with TestClient(app) as http:
        counted = ends(samples(http))
        assert http.get("/load").json() == {"server_load": 0}
    assert counted == {"abort": len(backend.requests)}
    assert service._gate.num_waiting("tiny", RT) == 0


def test_every_end_is_counted_once(backend, says) -> None:
    """Finished, failed, timed out, refused and left: five calls, five counts."""
    says("hello world")
    app = create_app(backend, ApiSettings())
    with TestClient(app) as http:
        assert http.post("/v1/completions", json=TEXT).status_code == 200
        backend.error = Overloaded("full", retry_after_s=500)
        refused = http.post("/v1/completions", json=TEXT)
        assert refused.status_code == 429 and refused.headers["retry-after"] == "60"
        backend.error = RuntimeError("broken")
        with pytest.raises(RuntimeError):
            http.post("/v1/completions", json=TEXT)
        backend.error, backend.most_deltas = None, 0
        late = http.post("/v1/completions", json=TEXT, headers={"x-request-timeout-seconds": "1"})
        assert late.status_code == 408
        service = app.state.service

        async def leave() -> None:
            backend.most_deltas = 1
            stream = service.generate(TEXT)
            await anext(stream)
            await stream.aclose()

        asyncio.run(leave())
        assert ends(samples(http)) == {"stop": 1, "rejected": 1, "error": 2, "abort": 1}


def test_a_time_limit_that_passes_in_a_stream_is_an_error_event(backend, says) -> None:
    says("hello world again", ends=False)
    backend.most_deltas = 2
    app = create_app(backend, ApiSettings())
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)

    async def read() -> str:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            headers = {"X-Request-Timeout-Seconds": "1"}
            body = TEXT | {"stream": True}
            return (await client.post("/v1/completions", json=body, headers=headers)).text

    lines = asyncio.run(read()).strip().split("\n\n")
    assert len(lines) >= 2
    assert json.loads(lines[0].removeprefix("data: "))["choices"]
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "request_timeout"
    assert len(backend.aborted) == 1


def test_a_body_that_trickles_in_ends_with_the_time_limit(backend) -> None:
    app = create_app(backend, ApiSettings(request_timeout_s=0.05))

    async def trickle() -> Any:
        yield b'{"model": "tiny",'
        await asyncio.sleep(30)

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        headers = {"Content-Type": "application/json"}
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post("/v1/completions", content=trickle(), headers=headers)

    answer = asyncio.run(send())
    assert answer.status_code == 408
    assert answer.json()["error"]["code"] == "request_timeout"
