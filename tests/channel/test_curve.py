"""Strangers on the network: no way in, nothing to read, and no harm to those who belong there."""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from muxcluster.channel import curve
from muxcluster.channel.client import UnitClient
from muxcluster.channel.codec import Ping, Submit, encode
from muxcluster.channel.curve import Door, new_keys, unlock
from muxcluster.core.directory import UnitAddress
from muxcluster.core.errors import EngineFailure, NotReady
from tests.channel.harness import (
    CLIENT_KEYS,
    PATIENCE_S,
    Unit,
    collect,
    finished,
    request,
    run,
    tokens_of,
    until,
)
from tests.channel.relay import relayed

FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_DISCONNECTED
)
GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL".ljust(64, b"\0")


@pytest.fixture
def unit() -> Iterator[Unit]:
    unit = Unit("tcp://127.0.0.1:*")
    yield unit
    unit.server.close()


def port_of(address: UnitAddress) -> int:
    return int(address.endpoint.rpartition(":")[2])


def assert_turned_away(stranger: "zmq.Socket[bytes]", unit: Unit) -> None:
    """The stranger asks, is disconnected, and has heard nothing."""
    stranger.setsockopt(zmq.LINGER, 0)
    monitor = stranger.get_monitor_socket(FAILED)
    stranger.connect(unit.address.endpoint)
    with suppress(zmq.Again):  # where it was turned away before it could ask
        stranger.send(encode(Submit(request("injected"))), zmq.NOBLOCK)
        stranger.send(encode(Ping()), zmq.NOBLOCK)
    assert monitor.poll(PATIENCE_S * 1000), "still connected"
    run(unit.address, lambda client: works(client))
    with pytest.raises(zmq.Again):
        stranger.recv(zmq.NOBLOCK)
    stranger.disable_monitor()
    assert "injected" not in unit.submitted


async def works(client: UnitClient) -> None:
    assert tokens_of(await collect(client, request("echo", 20))) == list(range(20))


def test_a_client_with_another_key_gets_nothing(unit: Unit) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        assert unit.address.server_key is not None
        unlock(stranger, unit.address.server_key, new_keys())
        assert_turned_away(stranger, unit)


def test_a_client_without_keys_gets_nothing(unit: Unit) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        assert_turned_away(stranger, unit)


def test_the_public_half_of_the_clients_key_is_not_enough(unit: Unit) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        assert unit.address.server_key is not None
        keys = replace(new_keys(), public=CLIENT_KEYS.public)
        unlock(stranger, unit.address.server_key, keys)
        assert_turned_away(stranger, unit)


def test_a_server_that_is_not_the_unit_gets_no_request(unit: Unit) -> None:
    impostor = Unit("tcp://127.0.0.1:*")
    address = replace(impostor.address, server_key=unit.address.server_key)

    async def scenario(client: UnitClient) -> None:
        with pytest.raises(NotReady):
            await collect(client, request("echo"))

    try:
        run(address, scenario)
        assert impostor.submitted == []
    finally:
        impostor.server.close()


def raw_attacks() -> list[bytes]:
    return [
        b"",
        b"GET / HTTP/1.1\r\nHost: unit\r\n\r\n",
        os.urandom(100_000),
        GREETING,
        # a NULL handshake, then a frame that says it is 2**50 bytes long
        GREETING + b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x06DEALER" + b"\x02\0\x04" + b"\0" * 6,
        # the same length as the very first command
        GREETING.replace(b"NULL\0", b"CURVE") + b"\x06\0\x04\0\0\0\0\0\0",
        b"\xff" * 10 + os.urandom(54) + encode(Submit(request("injected"))),
    ]


def test_garbage_on_the_port_disturbs_nobody(unit: Unit) -> None:
    async def scenario(client: UnitClient) -> None:
        stream = asyncio.create_task(collect(client, request("a")))
        await until(lambda: unit.submitted == ["a"])
        attackers = []
        for data in raw_attacks():
            attacker = socket.create_connection(("127.0.0.1", port_of(unit.address)))
            attackers.append(attacker)
            attacker.sendall(data)
            await works(client)
        unit.server.send({"a": finished("a")})
        assert await stream == [finished("a")]
        for attacker in attackers:
            attacker.close()
        await works(client)

    run(unit.address, scenario)
    assert unit.server.is_alive and "injected" not in unit.submitted


def test_garbage_from_a_client_with_the_key_is_survived(unit: Unit) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        assert unit.address.server_key is not None
        client.setsockopt(zmq.LINGER, 0)
        unlock(client, unit.address.server_key, CLIENT_KEYS)
        client.connect(unit.address.endpoint)
        for data in (b"", b"\xc1", os.urandom(10_000)):
            client.send(data)
        client.send(encode(Submit(request("after"))))
        asyncio.run(until(lambda: unit.submitted == ["after"]))
    run(unit.address, works)


def test_nothing_can_be_read_on_the_way(unit: Unit) -> None:
    secret = "what-the-tenant-asked"
    asked = replace(request("echo-in-clear", 30), cache_salt=secret)
    with relayed(unit.address.endpoint) as relay:

        async def scenario(client: UnitClient) -> None:
            assert len(tokens_of(await collect(client, asked))) == 30

        run(replace(unit.address, endpoint=f"tcp://127.0.0.1:{relay.port}"), scenario)
        assert len(relay.passed) > len(encode(Submit(asked)))
        for clear in (secret, "echo-in-clear", "submit", "deltas"):
            assert clear.encode() in encode(Submit(asked)) or clear == "deltas"
            assert clear.encode() not in relay.passed


def test_a_cut_link_is_noticed_on_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither end's own silence limit is in play: the heartbeat alone finds out."""
    monkeypatch.setattr(curve, "HEARTBEAT_MS", 500)
    monkeypatch.setattr(curve, "UNREACHABLE_MS", 2500)
    unit = Unit("tcp://127.0.0.1:*")
    with relayed(unit.address.endpoint) as relay:

        async def scenario(client: UnitClient) -> None:
            stream = asyncio.create_task(collect(client, request("a")))
            await until(lambda: unit.submitted == ["a"] and client.stats() is not None)
            assert not client.is_broken()
            relay.cut()
            with pytest.raises(NotReady) as loss:
                await stream
            assert loss.value.code == "replica_lost" and client.is_broken()
            await until(lambda: unit.aborted == ["a"])

        run(replace(unit.address, endpoint=f"tcp://127.0.0.1:{relay.port}"), scenario)
    unit.server.close()


def test_no_door_without_a_lock(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="only clients with a key"):
        Door("tcp://10.0.0.1:*")
    assert Door(f"ipc://{tmp_path}/u").client_key is None

    async def connect(address: UnitAddress) -> None:
        await UnitClient().connect(address, None)

    with pytest.raises(EngineFailure, match="cannot connect to ipc"):
        asyncio.run(connect(UnitAddress("u", "ipc://" + "long" * 100)))
    for key in (None, new_keys().public):
        with pytest.raises(ValueError, match="keys on both ends"):
            asyncio.run(connect(UnitAddress("u", "tcp://10.0.0.1:1", key)))
