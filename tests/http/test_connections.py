"""Limits of connections: whose place a new one takes, and who gets none."""

import contextlib
import json
import logging
import resource
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muxcluster.core.errors import Overloaded, Unavailable
from muxcluster.http.app import create_app
from muxcluster.http.server import connection as connection_module
from muxcluster.http.server import connections as connections_module
from muxcluster.http.server import listener as listener_module
from muxcluster.http.server.connection import HeadLimits
from muxcluster.http.server.connections import SPARE_FILES, OpenConnections, fitting
from muxcluster.http.settings import ApiSettings, ConnectionLimits
from tests.amounts import examples
from tests.http.fakes import wait_until
from tests.http.listeners import (
    CLOSING,
    GET,
    connected,
    exchange,
    listening,
    received,
    status_of,
    statuses_of,
)

BODY = json.dumps({"model": "tiny", "prompt": "hello", "stream": True, "max_tokens": 9}).encode()
POST = (
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY)
)


class Transport:
    """As much of an asyncio transport as is asked for."""

    def __init__(self, peer: object, unsent: int = 0) -> None:
        self.peer, self.unsent = peer, unsent
        self.end = ""

    def get_extra_info(self, name: str) -> object:
        return self.peer if name == "peername" else None

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def close(self) -> None:
        self.end = "closed"

    def abort(self) -> None:
        self.end = "aborted"


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections_module, "GRACE_S", 0.0)


def entered(connections: Any, *peers: object) -> list[Any]:
    made = [Transport(peer) for peer in peers]
    for each in made:
        connections.enter(each)
    return made


def test_the_longest_idle_gives_its_place() -> None:
    connections = OpenConnections(ConnectionLimits(most=3))
    one, two, three = entered(connections, *[("10.0.0.1", 1)] * 3)
    connections.begin_request(one)
    connections.end_requests(one)  # now it is idle for a shorter time than the others
    connections.begin_request(two)
    entered(connections, ("10.0.0.2", 1))
    assert (one.end, two.end, three.end) == ("", "", "closed")
    one.unsent = 5
    (last,) = entered(connections, ("10.0.0.2", 2))
    assert one.end == "aborted", "its client does not read"
    connections.check()
    connections.begin_request(last)
    entered(connections, ("10.0.0.2", 3))
    connections.check()


def test_where_all_have_requests_a_new_one_is_refused() -> None:
    connections = OpenConnections(ConnectionLimits(most=2))
    for each in entered(connections, ("10.0.0.1", 1), ("10.0.0.1", 2)):
        connections.begin_request(each)
    with pytest.raises(Unavailable, match="2 connections are open") as full:
        entered(connections, ("10.0.0.1", 3))
    assert not isinstance(full.value, Overloaded)
    connections.check()


def test_a_connection_has_a_moment_for_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood takes no place from one that has just come: what is new is refused meanwhile."""
    monkeypatch.setattr(connections_module, "GRACE_S", 1.0)
    now = 10.0
    monkeypatch.setattr(connections_module.time, "monotonic", lambda: now)
    connections = OpenConnections(ConnectionLimits(most=2))
    one, two = entered(connections, ("10.0.0.1", 1), ("10.0.0.1", 2))
    now = 10.9
    with pytest.raises(Unavailable, match="2 connections are open"):
        entered(connections, ("10.0.0.1", 3))
    connections.begin_request(one)
    connections.end_requests(one)
    now = 11.1
    entered(connections, ("10.0.0.1", 3))
    assert (one.end, two.end) == ("", "closed")
    connections.check()


@pytest.mark.parametrize(
    ("first", "second", "are_one"),
    [
        (("10.0.0.1", 1), ("10.0.0.1", 2), True),
        (("10.0.0.1", 1), ("10.0.0.2", 1), False),
        (("2001:db8::1", 1, 0, 0), ("2001:db8::ffff:1", 1, 0, 0), True),
        (("2001:db8::1", 1, 0, 0), ("2001:db8:0:1::1", 1, 0, 0), False),
        (("::ffff:10.0.0.1", 1, 0, 0), ("10.0.0.1", 1), True),
        (("fe80::1%eth0", 1, 0, 2), ("fe80::2%eth0", 1, 0, 2), True),
        (("no address", 1), ("no address", 2), True),
        ("", "", False),  # Unix sockets
        (None, None, False),
    ],
)
def test_addresses_are_told_apart(first: object, second: object, are_one: bool) -> None:
    connections = OpenConnections(ConnectionLimits(per_address=1))
    (one,) = entered(connections, first)
    if are_one:
        with pytest.raises(Overloaded, match="1 connections from this address"):
            entered(connections, second)
        connections.leave(one)
    entered(connections, second)
    connections.check()


@settings(max_examples=examples(100, 5000), deadline=None)
@given(
    st.integers(1, 5),
    st.one_of(st.none(), st.integers(1, 3)),
    st.lists(st.tuples(st.sampled_from("ewbi"), st.integers(0, 9)), max_size=60),
)
def test_the_books_agree_whatever_happens(
    most: int, per_address: int | None, steps: list[tuple[str, int]]
) -> None:
    """e: enters, w: leaves, b: begins a request, i: is idle."""
    connections: Any = OpenConnections(ConnectionLimits(most, per_address))
    known: list[Transport] = []
    for what, number in steps:
        if what == "e":
            made = Transport((f"10.0.0.{number % 3}", number))
            before = len(connections)
            try:
                connections.enter(made)
                known.append(made)
            except Overloaded:
                assert per_address is not None and before >= per_address
            except Unavailable:
                assert before == most
        elif known:
            each = known[number % len(known)]
            {
                "w": connections.leave,
                "b": connections.begin_request,
                "i": connections.end_requests,
            }[what](each)
        connections.check()
    for each in known:
        connections.leave(each)
    assert len(connections) == 0
    connections.check()


def test_over_tls_a_connection_without_a_place_is_not_waited_for() -> None:
    connections = OpenConnections(ConnectionLimits(most=1), is_tls=True)
    one, _two = entered(connections, ("10.0.0.1", 1), ("10.0.0.1", 2))
    assert one.end == "aborted"


def test_the_limit_of_open_files_is_kept_in_mind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [1024, 4096]
    monkeypatch.setattr(resource, "getrlimit", lambda which: tuple(now))
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: now.__setitem__(0, pair[0]))
    assert fitting(ConnectionLimits(most=100)).most == 100
    assert now[0] == 100 + SPARE_FILES
    assert fitting(ConnectionLimits(most=100), 50).most == 100
    assert now[0] == 150 + SPARE_FILES and not caplog.records
    with caplog.at_level(logging.WARNING):
        assert fitting(ConnectionLimits(most=10_000)).most == 4096 - SPARE_FILES
    assert "3072 connections at most, not 10000" in caplog.text and "4096 open files" in caplog.text
    assert fitting(ConnectionLimits(most=10_000), 1024).most == 4096 - 1024 - SPARE_FILES
    now[:] = [1024, 1024]
    assert fitting(ConnectionLimits(most=10_000, per_address=7)) == ConnectionLimits(512, 7)


@pytest.fixture(params=["httptools", "h11"])
def parser(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    pytest.importorskip(name)
    return name


@pytest.fixture
def port(backend: Any, says: Any, parser: str) -> Iterator[int]:
    """At most eight connections."""
    says("hello")
    app = create_app(backend, ApiSettings())
    limits = ConnectionLimits(most=8)
    with listening(app, HeadLimits(timeout_s=600.0), parser, connections=limits) as number:
        yield number


def test_idle_connections_and_begun_heads_keep_nobody_out(port: int) -> None:
    with connected(port) as busy:
        busy.sendall(GET + b"\r\n")
        assert busy.recv(65536).startswith(b"HTTP/1.1 200")
        crowd = [connected(port) for _ in range(40)]
        try:
            for each in crowd[::2]:
                try:
                    each.sendall(GET)
                except OSError:
                    continue  # it has given its place
            for _ in range(20):
                assert status_of(exchange(port, CLOSING)) == 200
            assert received(crowd[0]) == b""
        finally:
            for each in crowd:
                each.close()


def test_streams_keep_their_places_and_one_too_many_is_503(port: int, backend: Any) -> None:
    backend.most_deltas = 1
    streams = [connected(port) for _ in range(8)]
    try:
        for each in streams:
            each.sendall(POST + BODY)
        assert wait_until(lambda: len(backend.requests) == 8)
        answer = exchange(port, CLOSING)
        assert status_of(answer) == 503
        assert b"retry-after: 5" in answer and b"server_is_overloaded" in answer
        backend.most_deltas = 1000
        answers = [received(each) for each in streams]
        assert all(statuses_of(each) == [200] and b"[DONE]" in each for each in answers)
        assert status_of(exchange(port, CLOSING)) == 200
    finally:
        for each in streams:
            each.close()


def test_an_address_has_no_more_than_its_own(backend: Any, says: Any, parser: str) -> None:
    says("hello")
    app = create_app(backend, ApiSettings())
    limits = ConnectionLimits(per_address=2)
    with listening(app, HeadLimits(timeout_s=600.0), parser, connections=limits) as port:
        one, two = connected(port), connected(port)
        for each in (one, two):  # both are accepted before the third
            each.sendall(GET + b"\r\n")
            assert each.recv(65536).startswith(b"HTTP/1.1 200")
        answer = exchange(port, CLOSING)
        assert status_of(answer) == 429 and b"rate_limit_exceeded" in answer
        other = socket.create_connection(("127.0.0.1", port), 60, ("127.0.0.2", 0))
        with other:
            other.sendall(CLOSING)
            assert status_of(received(other)) == 200
        one.close()
        assert wait_until(lambda: status_of(exchange(port, CLOSING)) == 200)
        two.close()


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> list[OpenConnections]:
    """The open connections of the port of each connection that came."""
    found: list[OpenConnections] = []
    enter = OpenConnections.enter

    def noted(self: OpenConnections, transport: Any) -> None:
        enter(self, transport)
        found.append(self)

    monkeypatch.setattr(OpenConnections, "enter", noted)
    return found


def test_a_client_that_does_not_read_is_cut(
    port: int, monkeypatch: pytest.MonkeyPatch, ports: list[OpenConnections]
) -> None:
    """Thousands of pipelined requests whose answers it leaves where they are."""
    monkeypatch.setattr(connection_module, "UNREAD_S", 0.3)
    request = b"GET /dashboard/page.js HTTP/1.1\r\nHost: x\r\n\r\n"
    num_sent = 0
    with connected(port) as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.settimeout(0.05)

        def is_cut() -> bool:
            nonlocal num_sent
            with contextlib.suppress(OSError):  # its own window is full, so it may not hear of it
                num_sent += lazy.send((200 * request)[num_sent % len(request) :])
            return bool(ports) and not len(ports[0])

        assert wait_until(is_cut)
    assert status_of(exchange(port, CLOSING)) == 200


@pytest.mark.parametrize("ends", ["asked", "idle", "half", "failed"])
def test_a_closed_connection_does_not_wait_for_a_client_that_does_not_read(
    parser: str, monkeypatch: pytest.MonkeyPatch, ports: list[OpenConnections], ends: str
) -> None:
    """With too little unsent to pause the answer: here any amount is."""
    made = connection_module.Guard.__init__

    def made_unpaused(self: Any, transport: Any, *more: Any) -> None:
        transport.set_write_buffer_limits(high=2**30)
        made(self, transport, *more)

    async def large(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send(
            {"type": "http.response.body", "body": bytes(2**25), "more_body": ends == "failed"}
        )
        if ends == "failed":
            raise RuntimeError("in the middle of an answer")

    monkeypatch.setattr(connection_module.Guard, "__init__", made_unpaused)
    monkeypatch.setattr(connection_module, "UNREAD_S", 0.3)
    monkeypatch.setattr(listener_module, "KEEP_ALIVE_S", 0.2)
    with listening(large, HeadLimits(timeout_s=600.0), parser) as port, connected(port) as lazy:
        lazy.sendall(CLOSING if ends == "asked" else GET + b"\r\n")
        if ends == "half":
            lazy.shutdown(socket.SHUT_WR)
        assert wait_until(lambda: bool(ports) and not len(ports[0]))


def test_a_slow_reader_has_all_of_it(parser: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes many times as long as a client may read nothing."""
    body = bytes(range(256)) * 2**13

    async def large(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    monkeypatch.setattr(connection_module, "UNREAD_S", 0.3)
    with listening(large, HeadLimits(timeout_s=600.0), parser) as port, socket.socket() as slow:
        slow.settimeout(60.0)
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        slow.connect(("127.0.0.1", port))
        slow.sendall(CLOSING)
        data = b""
        while part := slow.recv(2**16):
            data += part
            time.sleep(0.02)
    assert body in data and data.endswith(b"0\r\n\r\n")
