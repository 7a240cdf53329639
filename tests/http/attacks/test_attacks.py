"""The attack table: what strangers and clients may try, while the streams of others go on.

Each attack ends with the answer that it should get, and every stream says what it says undisturbed.
"""

import json
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.amounts import slow
from tests.http.attacks.target import (
    ADMIN_KEY,
    KEY,
    OTHER_KEY,
    SETTINGS,
    Target,
    bearer,
    error_code,
)
from tests.http.fakes import wait_until
from tests.http.listeners import (
    CLOSING,
    GET,
    connected,
    exchange,
    received,
    status_of,
    statuses_of,
)
from tests.http.live_server import NAME

TEXT = {"model": NAME, "prompt": "hi", "max_tokens": 2}
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
SMUGGLED = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + bearer(KEY) + b"\r\n"


@contextmanager
def many(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Connections that begin nothing."""
    opened = [connected(port) for _ in range(count)]
    try:
        yield opened
    finally:
        for each in opened:
            each.close()


def send_all(clients: list[socket.socket], data: bytes) -> None:
    for each in clients:
        try:
            each.sendall(data)
        except OSError:
            continue  # it is closed: another took its place


def is_served(port: int) -> bool:
    return exchange(port, CLOSING).startswith(b"HTTP/1.1 200")


def test_slow_heads(target: Target) -> None:
    """A byte now and then on each of many connections."""
    with target.serving(), many(target.port, 50) as slow:
        for byte in GET[:30]:
            send_all(slow, bytes([byte]))
            time.sleep(0.05)
        answers = [received(each) for each in slow]
    assert {status_of(answer) for answer in answers if answer} == {408}
    assert sum(map(bool, answers)) > 25


def test_slow_bodies(target: Target) -> None:
    head = POST + bearer(KEY) + b"Content-Length: 5000\r\n\r\n"
    with target.serving(), many(target.port, 50) as slow:
        send_all(slow, head)
        for _ in range(30):
            send_all(slow, b" ")
            time.sleep(0.05)
        answers = [received(each) for each in slow]
    assert {status_of(answer) for answer in answers if answer} == {408}
    assert sum(map(bool, answers)) > 25


def test_bodies_that_strangers_do_not_send(target: Target) -> None:
    """Without a key the answer comes before the body, which is not waited for."""
    head = POST + b"Content-Length: 5000\r\n\r\n"
    with target.serving(), many(target.port, 50) as slow:
        send_all(slow, head)
        answers = [received(each) for each in slow]
    assert {status_of(answer) for answer in answers} == {401}


def test_huge_heads(target: Target) -> None:
    with target.serving():
        for _ in range(20):
            for head in (
                GET + b"X: " + b"a" * 100_000,
                GET + b"".join(b"X-%d: 1\r\n" % i for i in range(200)) + b"\r\n",
                b"GET /" + b"a" * 100_000,
            ):
                assert status_of(exchange(target.port, head)) == 431


@pytest.mark.parametrize("count", [600, *slow(5000)])
def test_idle_connections(target: Target, count: int) -> None:
    """All at once, many more than the port has places."""
    assert count > 2 * SETTINGS.connections.most
    allow_files(count + 1000)
    # where it is full of connections that have just come, a new stream waits for a second
    with target.serving(may_refuse=True), many(target.port, count) as idle:
        send_all(idle[::2], GET)
        assert wait_until(lambda: is_served(target.port))
    assert target.call("GET", "/v1/models")[0] == 200


def allow_files(count: int) -> None:
    """Let this process have so many open files."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if now < count:
        if most < count:
            pytest.skip(f"a process may have {most} open files here")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, most))


LENGTH = b"Content-Length: %d\r\n" % len(SMUGGLED)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNK = b"%x\r\n%s\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)


@pytest.mark.parametrize(
    "framing",
    [
        LENGTH + CHUNKED,
        CHUNKED + LENGTH,
        LENGTH + b"Content-Length: 0\r\n",
        b"Content-Length: 0, %d\r\n" % len(SMUGGLED),
        b"Content-Length: +0\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: 0x0\r\n",
        b"Content-Length: 0 0\r\n",
        b"Content-Length:\r\n",
        b"Content-Length: 99999999999999999999999\r\n",
        b"Content-Length : 0\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding: identity, chunked\r\n" + LENGTH,
        b"Transfer-Encoding : chunked\r\n",
        b"Transfer-Encoding:\x0bchunked\r\n",
        b"Transfer-Encoding\x00: chunked\r\n",
        LENGTH + b" Transfer-Encoding: chunked\r\n",
        b"X: 1\rTransfer-Encoding: chunked\r\n" + LENGTH,
    ],
    ids=str,
)
def test_framing_that_two_servers_could_read_in_two_ways(target: Target, framing: bytes) -> None:
    """Refused as a whole: what follows is no request, whichever way it is read."""
    head = POST + bearer(KEY) + framing + b"\r\n"
    for rest in (SMUGGLED, b"0\r\n\r\n" + SMUGGLED, CHUNK):
        answer = exchange(target.port, head + rest)
        assert statuses_of(answer) == [400]
        assert b'"object":"list"' not in answer


@pytest.mark.parametrize(
    "chunks",
    [
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"-1\r\nhello\r\n0\r\n\r\n",
        b"5;\nhello\r\n0\r\n\r\n",
        b"g\r\nhello\r\n0\r\n\r\n",
        b"\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhelloXX0\r\n\r\n",
        b"3\r\nhello\r\n0\r\n\r\n",
        b"FFFFFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n",
    ],
    ids=str,
)
def test_bad_chunks(target: Target, chunks: bytes) -> None:
    answer = exchange(target.port, POST + bearer(KEY) + CHUNKED + b"\r\n" + chunks + SMUGGLED)
    assert statuses_of(answer) == [400]
    assert b'"object":"list"' not in answer


def test_after_a_refusal_streams_go_on(target: Target) -> None:
    with target.serving():
        for _ in range(30):
            head = POST + bearer(KEY) + LENGTH + CHUNKED + b"\r\n"
            assert statuses_of(exchange(target.port, head + CHUNK)) == [400]


def text_body(**fields: Any) -> bytes:
    return json.dumps(TEXT | fields).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 1_000_000,
        b'{"model":' * 100_000,
        b'{"model": "tiny", "prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"model": "tiny", "prompt": [' + b"[]," * 5_000_000 + b"[]]}",
        b'{"model": "tiny", "prompt": [' + b"1," * 10_000_000 + b"1]}",
        b'{"model": "tiny", "prompt": "x", "max_tokens": ' + b"9" * 100_000 + b"}",
        b'{"model": "tiny", "prompt": "x", "temperature": 1e999999}',
        b'{"model": "tiny", "prompt": "x", "seed": 1' + b"0" * 4000 + b"}",
        b'{"model": "tiny", "prompt": "\\ud800"}',
        b"\xff\xfe{\x00}\x00",
        b'{"model": "tiny", "prompt": "x"}{"model": "tiny"}',
        b'{"model": "tiny", "prompt": "\x00"}',
        text_body(logit_bias={str(i): "x" for i in range(100_000)}),
        text_body(stop=["a" * 1_000_000] * 4),
        text_body(messages="x", **{f"f{i}": i for i in range(100_000)}),
    ],
    ids=range(15),
)
def test_json_that_is_too_much(target: Target, body: bytes) -> None:
    with target.serving():
        status, answer = target.call("POST", "/v1/completions", body)
    assert status == 400, answer[:200]
    assert len(answer) < 2000, "an error does not repeat what it was sent"


def test_of_equal_names_the_last_counts_everywhere(target: Target) -> None:
    """As in vLLM and Python. Nothing is checked on one and done with the other."""
    body = b'{"model": "tiny", "prompt": "x", "max_tokens": 10000000, "max_tokens": 2}'
    status, answer = target.call("POST", "/v1/completions", body)
    assert status == 200 and json.loads(answer)["usage"]["completion_tokens"] <= 2
    body = b'{"model": "tiny", "prompt": "x", "max_tokens": 2, "max_tokens": 10000000}'
    assert target.call("POST", "/v1/completions", body)[0] == 400


CLOSED_PATHS = (
    *("/metrics", "/v1/models", "/v1/cluster/live", "/usage", "/sleep", "/openapi.json"),
    *("/v1/files/../../etc/passwd", "/dashboard/../metrics", "/dashboard/..%2fmetrics"),
    *("/dashboard/%2e%2e/metrics", "/health/../metrics", "/health%2f..%2fmetrics"),
    *("//metrics", "///health", "/metrics/", "/metrics?/health", "/metrics;/health"),
    *("/metrics%00", "/metrics%20", "/%6detrics", "/METRICS", "/health%0a", "/health%00"),
    *("/dashboard/page.js/../../metrics", "/v1%2fmodels", "/./metrics", "http://x/metrics"),
    *("http://x/health/../metrics", "/dashboard/page.css%00.js"),
)


@pytest.mark.parametrize("path", CLOSED_PATHS)
def test_no_path_opens_without_a_key(target: Target, path: str) -> None:
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode("latin-1")
    answer = exchange(target.port, head)
    assert statuses_of(answer) in ([400], [401], [403], [404]), answer[:300]
    assert b"vllm:" not in answer and b"root:" not in answer and b'"units"' not in answer


@pytest.mark.parametrize(
    "headers",
    [
        b"X-Forwarded-For: 127.0.0.1\r\nX-Original-URL: /health\r\nX-Rewrite-URL: /health\r\n",
        b"Authorization: Bearer \r\n",
        b"Authorization: Bearer\r\n",
        b"Authorization: Basic " + KEY.encode() + b"\r\n",
        b"Authorization: Bearer " + KEY.encode() + b"x\r\n",
        b"Authorization: Bearer " + KEY.upper().encode() + b"\r\n",
        b"Authorization: Bearer wrong\r\nAuthorization: Bearer " + KEY.encode() + b"\r\n",
        b"Authorization: Bearer wrong\r\nX-Api-Key: " + KEY.encode() + b"\r\n",
        b"Cookie: api_key=" + KEY.encode() + b"\r\n",
    ],
    ids=range(9),
)
def test_no_header_but_the_first_key_opens(target: Target, headers: bytes) -> None:
    answer = exchange(
        target.port,
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + headers + b"\r\n",
    )
    assert statuses_of(answer) == [401]


def test_clients_are_no_operators(target: Target) -> None:
    for path in ("/sleep", "/wake_up", "/pin", "/unpin"):
        assert target.call("POST", f"{path}?model={NAME}")[0] == 403
    assert target.call("GET", "/v1/cluster/live")[0] == 403
    assert target.call("GET", "/v1/cluster/live", key=ADMIN_KEY)[0] == 200


def upload(target: Target, key: str, content: bytes) -> str:
    form = (
        b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; '
        b'filename="../../x\x1b[2J.jsonl"\r\n\r\n' + content + b"\r\n--b--\r\n"
    )
    status, answer = target.call(
        "POST", "/v1/files", form, key, **{"Content-Type": "multipart/form-data; boundary=b"}
    )
    assert status == 200, answer
    return str(json.loads(answer)["id"])


def test_another_tenants_files_and_batches_do_not_exist(target: Target) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": TEXT}
    file = upload(target, KEY, json.dumps(line).encode())
    job = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
    with target.serving():
        status, answer = target.call("POST", "/v1/batches", job)
        assert status == 200, answer
        batch = json.loads(answer)["id"]
        attempts = [
            *(("GET", f"/v1/files/{file}"), ("GET", f"/v1/files/{file}/content")),
            *(("DELETE", f"/v1/files/{file}"), ("GET", f"/v1/batches/{batch}")),
            *(("POST", f"/v1/batches/{batch}/cancel"), ("GET", f"/v1/batches/{batch}/events")),
        ]
        for method, path in attempts:
            status, answer = target.call(method, path, key=OTHER_KEY)
            assert (status, error_code(answer)) == (404, "not_found"), path
        assert target.call("POST", "/v1/batches", job, OTHER_KEY)[0] in (400, 404)
        for path in ("/v1/files", "/v1/batches"):
            assert json.loads(target.call("GET", path, key=OTHER_KEY)[1])["data"] == []
            assert len(json.loads(target.call("GET", path)[1])["data"]) >= 1
        found = json.loads(target.call("GET", f"/v1/batches/{batch}")[1])
        assert found["status"] not in ("cancelling", "cancelled")


@pytest.mark.parametrize(
    "name",
    ["../x", "..%2f..%2fetc%2fpasswd", "%00", "file-%0a", "a" * 5000, "file-1' OR '1'='1", "%ff"],
)
def test_ids_that_are_none(target: Target, name: str) -> None:
    for path in (f"/v1/files/{name}", f"/v1/files/{name}/content", f"/v1/batches/{name}"):
        head = f"GET {path.replace(' ', '%20')} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        answer = exchange(target.port, head.encode() + bearer(KEY) + b"\r\n")
        assert statuses_of(answer) in ([400], [404]), answer[:300]


def test_nothing_was_lost(target: Target) -> None:
    """After all of it each block is free again, and every stream was counted once."""

    def unit() -> dict[str, Any]:
        live = json.loads(target.call("GET", "/v1/cluster/live", key=ADMIN_KEY)[1])
        found: dict[str, Any] = live["units"][0]
        return found

    def is_empty() -> bool:
        (model,) = unit()["models"]
        return bool(model["running"] == model["waiting"] == model["used_blocks"] == 0)

    assert wait_until(is_empty), unit()
    assert unit()["state"] == "up"
    assert target.call("GET", "/health")[0] == 200
